import {replace} from '../dom.js';
import {empty} from '../parts.js';

export const title = 'Queue';

export async function show(view, query, signal) {
  replace(view, empty('Queue', 'This page is not there yet.'));
}
