// Runs before the first paint, so that the page does not flash in the other theme. Not a module: those run later.
'use strict';
try {
  const theme = localStorage.getItem('theme');
  if (theme === 'dark' || theme === 'light') document.documentElement.dataset.theme = theme;
} catch (error) {
  // No storage: the system's theme.
}
