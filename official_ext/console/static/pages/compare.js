import {replace} from '../dom.js';
import {empty} from '../parts.js';

export const title = 'Compare';

export async function show(view, query, signal) {
  replace(view, empty('Compare', 'This page is not there yet.'));
}
