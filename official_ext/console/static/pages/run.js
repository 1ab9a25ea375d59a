import {replace} from '../dom.js';
import {empty} from '../parts.js';

export const title = 'Run';

export async function show(view, query, signal) {
  replace(view, empty('Run', 'This page is not there yet.'));
}
