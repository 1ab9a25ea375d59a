import {replace} from '../dom.js';
import {empty} from '../parts.js';

export const title = 'New run';

export async function show(view, query, signal) {
  replace(view, empty('New run', 'This page is not there yet.'));
}
