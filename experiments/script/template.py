"""A script that trains: docs/how_to/script.md. It works unchanged; put your own training in its place.

    official-ext check script --set=script=template.py
    python train.py --experiment=script --mode=train --model_dir=runs/template --set=script=template.py \
        --set=learning_rate=3e-3 --set=max_steps=500 --set=batch_size=16

Set from outside, by --set=learning_rate=1e-3 and so on: MODEL_PATH, DATASET_PATH, OUTPUT_DIR, MAX_STEPS, BATCH_SIZE,
GRAD_ACCUM_STEPS, LEARNING_RATE, WARMUP_STEPS, MAX_GRAD_NORM, MAX_SEQ_LENGTH, MAX_INPUT_LENGTH, MAX_CONTENT_LENGTH,
MAX_SAMPLES, LORA_RANK, LOAD_IN_4BIT, NUM_GENERATIONS, PromptInputColumn, PromptOutputColumn, SEED, RESUME. Read those
that mean something here: one that is set and not read is an error.

To be set here: `model`, `tokenizer` (or None) and `trainer`, whose `train()` is called, and who gets `callback`.
Training and saving are done for you.
"""

import numpy as np
from sklearn import datasets
import tensorflow as tf
import tf_keras

# ============ your own code from here ============

# 1,797 handwritten digits, which scikit-learn brings along.
pixels, labels = datasets.load_digits(return_X_y=True)
pixels = (pixels / 16).astype(np.float32)

model = tf_keras.Sequential(
  [
    tf_keras.Input((64,)),
    tf_keras.layers.Dense(128, 'relu'),
    tf_keras.layers.Dense(10),
  ]
)
model.compile(
  optimizer=tf_keras.optimizers.Adam(LEARNING_RATE),
  loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
  metrics=['accuracy'],
)
tokenizer = None  # The data are not text.


class KerasTrainer:
  """A trainer is an object with a method `train`."""

  def train(self) -> None:
    """Trains for MAX_STEPS batches, and evaluates after each tenth of them."""
    is_held_out = np.arange(len(labels)) % 5 == 0
    data = tf.data.Dataset.from_tensor_slices((pixels[~is_held_out], labels[~is_held_out]))
    model.fit(
      data.shuffle(len(labels), seed=SEED).repeat().batch(BATCH_SIZE),
      epochs=min(10, MAX_STEPS),
      steps_per_epoch=max(1, MAX_STEPS // 10),
      validation_data=(pixels[is_held_out], labels[is_held_out]),
      callbacks=[callback],
      verbose=0,
    )


trainer = KerasTrainer()

# ============ to here ============

# A language model of Hugging Face instead, with adapters:
#
#   from datasets import load_dataset
#   from peft import LoraConfig
#   from transformers import AutoModelForCausalLM, AutoTokenizer
#   from trl import SFTConfig, SFTTrainer
#
#   tokenizer = AutoTokenizer.from_pretrained(MODEL_PATH)
#   model = AutoModelForCausalLM.from_pretrained(MODEL_PATH)
#   records = load_dataset('json', data_files=DATASET_PATH, split='train')
#   records = records.rename_columns({PromptInputColumn: 'prompt', PromptOutputColumn: 'completion'})
#   trainer = SFTTrainer(
#     model=model,
#     processing_class=tokenizer,
#     train_dataset=records,
#     peft_config=LoraConfig(r=LORA_RANK, lora_alpha=16, target_modules='all-linear'),
#     args=SFTConfig(
#       output_dir=OUTPUT_DIR,
#       max_steps=MAX_STEPS,
#       per_device_train_batch_size=BATCH_SIZE,
#       gradient_accumulation_steps=GRAD_ACCUM_STEPS,
#       learning_rate=LEARNING_RATE,
#       warmup_steps=WARMUP_STEPS,
#       max_grad_norm=MAX_GRAD_NORM,
#       max_length=MAX_SEQ_LENGTH,
#       logging_steps=1,
#       save_steps=50,  # The same command resumes from these after a stop.
#       report_to='none',
#     ),
#     callbacks=[callback],
#   )
