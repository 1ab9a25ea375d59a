"""The page of models, in a real browser, with real models."""

from PIL import Image
import pytest

from tests import train_processes
from tests.operations.console import models
from tests.operations.runs import folders


@pytest.fixture(scope='module', autouse=True)
def runs(browser, runs_folder, train_server, tmp_path_factory):
  models.make(runs_folder, train_server(), tmp_path_factory.mktemp('script'))


@pytest.mark.slow
def test_a_saved_model_is_found_and_tried(page, console):
  page.goto(f'{console.url}/models')
  card = page.get_by_role('region', name='digits')
  card.get_by_text('export/100').wait_for()
  assert page.get_by_role('region', name='plain').count() == 0
  card.get_by_role('link', name='Try').click()
  field = page.get_by_label('pixels float32')
  field.wait_for(timeout=60_000)
  page.allowed.append('400')  # The answer to the next message.
  field.fill('[1, 2]')
  page.get_by_role('button', name='Compute').click()
  page.get_by_text('has the shape (1, 2), expected (None, 64)').wait_for()
  field.fill(str([0] * 63 + [5]))
  page.get_by_role('button', name='Compute').click()
  first = page.locator('.bars li').first
  first.wait_for()
  assert first.inner_text().split() == ['3', '5']  # 63 is 3 modulo 10.
  page.reload()
  field.wait_for(timeout=60_000)  # The link names the model.


def test_a_language_model_answers_token_by_token_and_stops(page, console):
  page.goto(f'{console.url}/models')
  page.get_by_role('region', name='writer').get_by_role('link', name='Chat').click()
  page.get_by_text('llama, 256 positions').wait_for(timeout=60_000)
  page.get_by_text('Settings').click()
  page.get_by_label('max_new_tokens').fill('200')
  message = page.get_by_label('Message', exact=True)
  message.fill('<b>hello</b>')
  message.press('Enter')
  page.get_by_text('stopped at max_new_tokens').wait_for(timeout=60_000)
  assert page.locator('.message.user').inner_text() == '<b>hello</b>'  # Text, not HTML.
  assert len(page.locator('.message.assistant').inner_text()) > 20
  page.get_by_label('temperature').fill('-1')
  page.allowed.append('400')
  message.fill('again')
  message.press('Enter')
  page.get_by_text('--temperature: -1.0 must be 0').wait_for()
  assert message.input_value() == 'again' and page.locator('.message.user').count() == 1


@pytest.mark.soak
def test_two_models_answer_side_by_side(page, console):
  page.goto(f'{console.url}/models?run=writer&result=model&run2=other&result2=model')
  page.get_by_text('llama, 256 positions').nth(1).wait_for(timeout=120_000)
  page.get_by_label('Message', exact=True).fill('hello')
  page.get_by_label('Message', exact=True).press('Enter')
  page.get_by_text('tokens,').nth(1).wait_for(timeout=120_000)
  answers = page.locator('.message.assistant').all_inner_texts()
  assert len(answers) == 2 and all(answers) and answers[0] != answers[1]


_OUTPUTS_SCRIPT = """
import json
import sys
import tensorflow as tf

root = sys.argv[1]


def save(name, function, note, labels):
  folder = f'{root}/{name}/export/1'
  module = tf.Module()
  module.serve = function
  tf.saved_model.save(module, folder, signatures=function)
  with open(f'{folder}/export.json', 'w') as file:
    json.dump(note, file)
  with open(f'{folder}/labels.txt', 'w') as file:
    file.write(labels)


@tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8, 'inputs')])
def boxes(inputs):
  # Boxes in an input of 64 pixels, twice the picture's 32. The first object fills the left half of its box.
  is_left = tf.cast(tf.range(28) < 14, tf.float32)[tf.newaxis, tf.newaxis, tf.newaxis, :]
  return {
    'detection_masks': tf.ones([1, 3, 28, 28]) * is_left,
    'detection_boxes': tf.constant([[[0.0, 0.0, 32.0, 16.0], [32.0, 32.0, 64.0, 64.0], [0.0, 0.0, 9.0, 9.0]]]),
    'detection_scores': tf.constant([[0.9, 0.5, 0.1]]),
    'detection_classes': tf.constant([[1, 2, 1]]),
    'image_info': tf.constant([[[32.0, 32.0], [64.0, 64.0], [2.0, 2.0], [0.0, 0.0]]]),
  }


@tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.float32, 'image')])
def segment(image):
  # The range of export.json: a white picture has the value 1.
  is_left = tf.cast(tf.range(8) < 2, tf.float32)[tf.newaxis, tf.newaxis, :, tf.newaxis]
  return {'logits': tf.concat([tf.ones_like(image) * 0.5, image * is_left], -1), 'largest': tf.reduce_max(image)}


save('boxes', boxes, {'preprocessing': {'input': 'inputs', 'range': [0, 255]}},
     'background\\ncat\\ndog with a long name\\n')
save('pixels', segment, {'preprocessing': {'input': 'image', 'range': [0, 1]}}, 'ground\\nroad\\n')
"""


@pytest.fixture(scope='module')
def pictures(runs_folder, train_server, tmp_path_factory):
  """Runs with models that find boxes and classes of pixels; a white picture."""
  for name in ('boxes', 'pixels'):
    folders.make(runs_folder, name, [], identity=folders.ended_process(), status='finished', step=1)
  scratch = tmp_path_factory.mktemp('pictures')
  done = train_processes.Script(train_server(), scratch, _OUTPUTS_SCRIPT, [str(runs_folder)]).finish()
  assert done.returncode == 0, done.stderr
  Image.new('RGB', (32, 32), 'white').save(scratch / 'white.png')
  return scratch / 'white.png'


@pytest.mark.slow
def test_found_boxes_are_drawn_at_their_place_with_their_names(page, console, pictures):
  page.goto(f'{console.url}/models?run=boxes&result=export/1')
  file = page.get_by_label('A picture for inputs')
  file.wait_for(timeout=60_000)
  file.set_input_files(pictures)
  page.get_by_role('button', name='Compute').click()
  page.get_by_role('img', name='cat 0.90').wait_for()
  frame = page.locator('.found-layer').bounding_box()
  cat, dog = (page.get_by_role('img', name=name).bounding_box() for name in ('cat 0.90', 'dog with a long name 0.50'))
  assert page.locator('.found-box').count() == 2  # The third has a low score.
  for box, left, top, width, height in ((cat, 0, 0, 0.25, 0.5), (dog, 0.5, 0.5, 0.5, 0.5)):
    assert box['x'] - frame['x'] == pytest.approx(left * frame['width'], abs=1)
    assert box['y'] - frame['y'] == pytest.approx(top * frame['height'], abs=1)
    assert box['width'] == pytest.approx(width * frame['width'], abs=1)
    assert box['height'] == pytest.approx(height * frame['height'], abs=1)
  assert page.locator('.found-object').count() == 2
  scores = page.locator('.output', has_text='detection_scores')
  assert scores.locator('.bars').count() == 0  # They are of objects, not of classes.
  assert scores.locator('.values').inner_text().startswith('[\n [0.8')
  # A refused input leaves no outputs of the one before.
  file.set_input_files({'name': 'text.png', 'mimeType': 'image/png', 'buffer': b'not a picture'})
  page.get_by_role('button', name='Compute').click()
  page.get_by_text('No outputs: the input was refused.').wait_for()
  assert page.locator('.found-box, .output').count() == 0


@pytest.mark.slow
@pytest.mark.parametrize('width', [1280, 390])
def test_names_of_boxes_stay_inside_the_picture(new_page, console, pictures, width):
  page = new_page(viewport={'width': width, 'height': 800})
  page.goto(f'{console.url}/models?run=boxes&result=export/1')
  file = page.get_by_label('A picture for inputs')
  file.wait_for(timeout=60_000)
  file.set_input_files(pictures)
  page.get_by_role('button', name='Compute').click()
  page.locator('.found-box').first.wait_for()
  frame = page.locator('.found-frame').bounding_box()
  names = [name.bounding_box() for name in page.locator('.found-box span').all()]
  assert len(names) == 2
  for name in names:
    assert frame['x'] <= name['x'] and name['x'] + name['width'] <= frame['x'] + frame['width']
    assert frame['y'] <= name['y'] and name['y'] + name['height'] <= frame['y'] + frame['height']
  assert page.evaluate('document.documentElement.scrollWidth') == width


@pytest.mark.slow
def test_classes_of_pixels_are_drawn_and_the_range_is_that_of_the_export(page, console, pictures):
  page.goto(f'{console.url}/models?run=pixels&result=export/1')
  file = page.get_by_label('A picture for image')
  file.wait_for(timeout=60_000)
  file.set_input_files(pictures)
  assert page.get_by_label('The range of its values').count() == 0
  page.get_by_role('button', name='Compute').click()
  page.get_by_text('ground 75.0 %').wait_for()
  page.get_by_text('road 25.0 %').wait_for()
  largest = page.locator('.output', has_text='largest').locator('.values').inner_text()
  assert float(largest) == pytest.approx(1, abs=1e-6)  # Of float32.
