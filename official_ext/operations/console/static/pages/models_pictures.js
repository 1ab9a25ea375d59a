// The picture that a model has seen, with the boxes that it found, or the classes of its pixels.
import {element} from '../dom.js';

const LEAST_SCORE = 0.3;
const MOST_BOXES = 50;
const NAME_HEIGHT = 16; // In pixels.

/**
 * The picture with what the outputs show of it; null if they show nothing.
 *
 * @param {Object} outputs - by name: `values`, of segmentation logits also `mask`, of `detection_masks` also `masks`.
 * @param {string|null} picture - a data URL; without it boxes have no place.
 * @param {string[]} labels - the names of the classes.
 */
export function picturesOf(outputs, picture, labels = []) {
  const {detection_boxes: boxes, detection_scores: scores, detection_classes: classes, image_info: info} = outputs;
  const masks = outputs.detection_masks?.masks ?? [];
  if (picture && boxes?.values && scores?.values && classes?.values) {
    return withBoxes(picture, found(boxes.values[0], scores.values[0], classes.values[0], masks, info?.values?.[0]), labels);
  }
  const mask = Object.values(outputs).find((one) => one.mask)?.mask;
  return mask ? withMask(picture, mask, labels) : null;
}

/** The boxes in pixels of the picture that was chosen, or in shares of it; those of low scores are left out. */
function found(boxes, scores, classes, masks, info) {
  const isShare = boxes.flat().every((value) => value <= 1);
  // image_info: original size, size of the input, scale, offset; each of height and width. Shares refer to the original.
  const [scale, offset] = info && !isShare ? [info[2], info[3]] : [[1, 1], [0, 0]];
  return boxes.map(([top, left, bottom, right], number) => ({
    top: (top + offset[0]) / scale[0], left: (left + offset[1]) / scale[1],
    bottom: (bottom + offset[0]) / scale[0], right: (right + offset[1]) / scale[1],
    score: scores[number], label: classes[number], mask: masks[number], isShare,
  })).filter(({score}) => score >= LEAST_SCORE).slice(0, MOST_BOXES);
}

function withBoxes(picture, boxes, labels) {
  const image = element('img', {src: picture, alt: 'The picture with the found boxes'});
  const layer = element('div', {class: 'found-layer'});
  const draw = () => layer.replaceChildren(...boxes.map((box) => {
    const height = box.isShare ? 1 : image.naturalHeight, width = box.isShare ? 1 : image.naturalWidth;
    const name = labels[box.label] ?? `class ${box.label}`;
    // The name is above the box if there is room, and ends with it on the right: the picture's edges cut names off.
    const places = [box.top / height > NAME_HEIGHT / image.clientHeight && 'above', (box.left + box.right) / 2 > width / 2 && 'right'];
    return element('div', {class: ['found-box', ...places], role: 'img', 'aria-label': `${name} ${box.score.toFixed(2)}`, style: {
      top: percent(box.top / height), left: percent(box.left / width),
      height: percent((box.bottom - box.top) / height), width: percent((box.right - box.left) / width),
      '--hue': String(Math.round(box.label * 222.5) % 360),
    }}, box.mask && element('div', {class: 'found-object', style: {'mask-image': `url(data:image/png;base64,${box.mask})`}}),
    element('span', {}, `${name} ${box.score.toFixed(2)}`));
  }));
  image.addEventListener('load', draw);
  const told = boxes.length ? `${boxes.length} boxes of scores from ${LEAST_SCORE}` : `no box of a score of ${LEAST_SCORE} or more`;
  return element('figure', {class: 'found'}, element('div', {class: 'found-frame'}, image, layer),
    element('figcaption', {class: 'soft'}, told));
}

function withMask(picture, {png, classes}, labels) {
  const layer = element('img', {class: picture ? 'found-mask' : null, src: `data:image/png;base64,${png}`,
    alt: 'The classes of the pixels'});
  return element('figure', {class: 'found'},
    element('div', {class: 'found-frame'}, picture && element('img', {src: picture, alt: 'The picture'}), layer),
    element('figcaption', {}, element('ul', {class: 'found-classes'}, classes.slice(0, 12).map(({number, share, colour}) =>
      element('li', {}, element('span', {class: 'found-colour', 'aria-hidden': 'true',
        style: {background: number ? `rgb(${colour.join(', ')})` : 'transparent'}}),
      ` ${labels[number] ?? `class ${number}`} ${(100 * share).toFixed(1)} %`)))));
}

function percent(share) {
  return `${100 * share}%`;
}
