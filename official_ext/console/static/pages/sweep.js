import {replace} from '../dom.js';
import {empty} from '../parts.js';

export const title = 'Sweep';

export async function show(view, query, signal) {
  replace(view, empty('Sweep', 'This page is not there yet.'));
}
