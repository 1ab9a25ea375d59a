"""Gin's bindings that no call has used. The only module that reads gin's private tables."""

import inspect

from gin import config


def unused(of_classes: bool | None = None) -> list[str]:
  """The bindings that no call has used so far, such as 'Trainer.norm_decay', in the order of their definition.

  A binding without a scope counts as used by a call in any scope. Macros and constants are not listed.

  Args:
    of_classes: True for those of classes alone, which are constructed while an experiment is built; False for those of
      functions alone, which may be called later; None for both.
  """
  found = []
  for (scope, selector), values in config._CONFIG.items():
    configurable = config._REGISTRY.get_match(selector)
    if configurable is None or configurable.selector in ('gin.macro', 'gin.constant'):
      continue
    if of_classes is not None and of_classes != inspect.isclass(configurable.wrapped):
      continue
    used = set().union(
      *(
        arguments
        for (place, name), arguments in config._OPERATIVE_CONFIG.items()
        if name == selector and (place == scope or not scope or place.startswith(f'{scope}/'))
      )
    )
    prefix = f'{scope}/' if scope else ''
    found += [f'{prefix}{selector.removeprefix("__main__.")}.{name}' for name in values if name not in used]
  return found


def warning(when: str, of_classes: bool | None = None) -> str:
  """One line about the bindings that no call has used; '' if there are none.

  Args:
    when: the time of the look, such as 'while the experiment was built'.
    of_classes: see `unused`.
  """
  names = unused(of_classes)
  if not names:
    return ''
  hint = ''
  if any(name.rpartition('.')[0].endswith('base_trainer.Trainer') for name in names):
    hint = '; the trainer here is official_ext.Trainer'
  return f'--gin_file, --gin_params: no call used {", ".join(names)} {when}{hint}'
