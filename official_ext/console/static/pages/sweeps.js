import {replace} from '../dom.js';
import {empty} from '../parts.js';

export const title = 'Sweeps';

export async function show(view, query, signal) {
  replace(view, empty('Sweeps', 'This page is not there yet.'));
}
