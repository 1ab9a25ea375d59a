import {replace} from '../dom.js';
import {empty} from '../parts.js';

export const title = 'Models';

export async function show(view, query, signal) {
  replace(view, empty('Models', 'This page is not there yet.'));
}
