"""The help of official-ext, and of each of its commands."""

_FLAGS = """
The flags of train.py change the experiment first:
  --set=NAME=VALUE           one field, by dotted path or short name; may be given several times, applied last
  --config_file=FILE         YAML or JSON with fields to change; may be given several times
  --params_override=TEXT     the same, in place
  --registry=MODULE          a module of yours to import, which registers experiments; may be given several times
  --gin_file=FILE, --gin_params=BINDING
                             gin bindings
  --tpu=NAME, --tf_data_service=ADDRESS
                             addresses, as in Model Garden"""

_SAMPLING = """\
  --max_new_tokens=N         {}
  --temperature=X            0: the likeliest token; above: drawn. Default: as the folder's generation_config.json
                             says, or else 0
  --top_k=N, --top_p=X, --min_p=X, --repetition_penalty=X
                             as in transformers; default: likewise
  --seed=N                   of what is drawn; default: 0
  --dtype=bfloat16           weights are kept, and computed with, in half precision; default: float32
  --base_model=FOLDER        the model that adapters are for, if their adapter_config.json does not tell
  --load_in_4bit=true|false  whether kernels are kept in 4 bits (NF4); default: as the adapters were trained"""

# The line of each command in the list of all, and its own help.
COMMANDS: dict[str, tuple] = {
  'list': (
    'list [--registry=MODULE]',
    'the experiments that --experiment can name',
    """Prints the name of each registered experiment, and the first line of what it says about itself: those of
registry_imports.py, of installed packages with an entry point official_ext.experiments, and of --registry.

  --registry=MODULE          a module of yours to import, which registers experiments; may be given several times

The list is kept in the user's cache folder, until a file that was read changes or a package is installed.""",
  ),
  'describe': (
    'describe NAME [--yaml]',
    'every field: path, type, value, short name, meaning',
    f"""Prints every field of an experiment's configuration.

  --yaml                     the values as YAML, which --config_file reads
{_FLAGS}""",
  ),
  'new': (
    'new NAME [--like=OTHER]',
    'writes experiments/NAME with its test; --package: a package of its own',
    """Writes a new experiment, which trains as it is: a folder of experiments/ with configs.py, task.py, ...,
its test in tests/experiments, and one line in registry_imports.py.

  --like=OTHER               begins with a copy of another experiment of this repository; --like=script writes NAME.py
                             into this folder instead, which the experiment `script` runs
  --package                  a package of its own in this folder instead, whose entry point train.py finds""",
  ),
  'check': (
    'check NAME',
    'looks for mistakes in the task, and runs it once, small',
    f"""Looks for mistakes in a task, and runs its whole life once, small, in a temporary folder: one step,
one evaluation, save, restore, compare. Of a method of fine-tuning it saves the result too, loads it, and compares
logits. docs/add_a_task.md lists what it finds.
{_FLAGS}""",
  ),
  'export': (
    'export RUN [--which=best|latest|STEP]',
    'writes the model of a run as a SavedModel; --to: fills in a tracker',
    """Writes the model that the run in the folder RUN has trained as a SavedModel with a signature, and prints the
signature. docs/use_a_model.md explains its inputs and outputs; official_ext.load does the same in Python.

  --which=WHICH              best, latest, the step of a checkpoint, or the path of one; default: best, if the run
                             keeps that, or else latest
  --ema=false                the weights themselves, if the run has kept moving averages of them
  --output_dir=DIR           a folder that does not exist yet; default: RUN/export/STEP
  --experiment=NAME          the experiment, if run.json does not tell
  --registry=MODULE          a module of yours to import, which registers experiments; may be given several times

export RUN --to=mlflow|wandb|csv fills in a tracker from the files of the run instead: see `runs export`.""",
  ),
  'convert': (
    'convert SOURCE TARGET',
    'a Hugging Face folder of another, of adapters and base, or of a run',
    """Writes the Hugging Face folder TARGET, which transformers loads too. SOURCE is such a folder, a folder of peft
with adapters, which are merged into their base, or the folder of a run. The model of a folder or a run is a
LanguageModel, or a classifier (...ForSequenceClassification). A run with custom layers, or with weights beside the
decoder and its head, is refused; what was written of a run is read back, and its logits are compared.

  --dtype=DTYPE              float32, bfloat16 or float16; default: as SOURCE's config.json says, or else float32
  --max_shard_size=SIZE      no file of weights is larger, such as 200MB or 4GiB; default: 5GB
  --adapter=FOLDER           a folder of peft with adapters for SOURCE, which are merged into it
  --base_model=FOLDER        the model that adapters are for, if their adapter_config.json does not tell
  --load_in_4bit=true|false  whether adapters are merged into weights in 4 bits (NF4); default: as they were trained
  --tokenizer=FOLDER         whose tokenizer goes along; default: that of the adapters, the model or the run
Of a run:
  --which=WHICH              best, latest, the step of a checkpoint, or the path of one; default: best, if the run
                             keeps that, or else latest
  --ema=false                the weights themselves, if the run has kept moving averages of them
  --experiment=NAME          the experiment, if run.json does not tell
  --registry=MODULE          a module of yours to import, which registers experiments; may be given several times""",
  ),
  'predict': (
    'predict FOLDER [--input=NAME=VALUES]',
    'what a SavedModel answers',
    """Prints what the SavedModel in FOLDER answers, as JSON; without inputs the signatures that it has.

  --input=NAME=VALUES        a tensor, as JSON, such as pixels=[[0.5,1]]; may be given several times. The dimension of
                             the batch may be left out
  --image=NAME=FILE          a tensor from a PNG, JPEG, GIF or BMP, at the size that the signature says
  --range=0..255|0..1|-1..1  of the values of a picture in a tensor of floats; default: 0..255
  --signature=NAME           default: serving_default
  --load_in_4bit=true|false  which base is expected of a language model; it stays as it was exported, and another is
                             refused""",
  ),
  'generate': (
    'generate FOLDER --prompt=TEXT',
    'continues a text by the model of a folder',
    f"""Prints the continuation of a text alone on stdout: token by token on a terminal, otherwise when it is whole.
FOLDER is a Hugging Face folder, or one of peft with adapters, whose adapter_config.json names their base.

  --prompt=TEXT              what is continued
  --use_chat_template=true   make a message of the user's of it, by the folder's chat template
  --chat_template_path=FILE  a chat template in Jinja, in the place of the folder's
{_SAMPLING.format('at most so many; default: 128')}""",
  ),
  'chat': (
    'chat FOLDER',
    'a conversation with the model of a folder',
    f"""Answers messages, which are lines of stdin, by the chat template of FOLDER: a Hugging Face folder, or one of
peft with adapters, whose adapter_config.json names their base. /clear begins anew, Ctrl-C stops an answer, /exit or
Ctrl-D ends. The oldest messages are forgotten, and that is told, when the context is full.

  --system_prompt=TEXT       the first message, of the system
  --chat_template_path=FILE  a chat template in Jinja, in the place of the folder's
{_SAMPLING.format('of an answer, at most; default: 512, or half the context')}""",
  ),
  'runs': (
    'runs COMMAND RUNS_DIR [RUN]...',
    'lists, stops, resumes, clones, compares and deletes runs',
    """Works on the folders of runs below RUNS_DIR; a RUN is named by its path there. docs/runs.md tells more.

  list RUNS_DIR              all runs: status, step, time left, metrics
    --status=A,B --experiment=A,B --tag=A,B
                             of any of these statuses or experiments, with all of these tags
    --filter=CONDITION       such as learning_rate=1e-3, accuracy>0.9 or name~resnet; may be given several times
    --sort=NAME              by a metric, the best first, a field, step, started, ...; -NAME: the other way round
    --metrics=A,B            the metrics to show
    --archived, --trash      what is archived, or was deleted, instead
    --hung_minutes=N         a run that has come to no step for so long hangs; default: 30
  show RUNS_DIR RUN          all about a run, and the end of its log
  log RUNS_DIR RUN           the output of a run that was started detached: [--lines=20] [--follow] [--mode=MODE]
  stop RUNS_DIR RUN...       lets a run save and stop; --now: at once, unsaved; --wait=SECONDS: until it has ended;
                             --mode=eval: an evaluation beside it, not the training
  resume RUNS_DIR RUN...     goes on with a run, detached; --print: prints the command instead
  clone RUNS_DIR RUN         makes the folder of a run like another, and prints the command that begins it
    --name=NEW               its name; default: one that is free
    --set=NAME=VALUE         a change, as for train.py, which is asked first; may be given several times
    --start                  begins it, detached
    --queue                  adds it to the queue of RUNS_DIR
  compare RUNS_DIR RUN RUN...
                             fields that differ, last and best metrics, versions
  export RUNS_DIR RUN...     fills in a tracker with what it lacks: --to=mlflow, --to=wandb (files for `wandb sync`), or
                             --to=csv (events.csv)
    --tracking_uri=URI       of MLflow; default: the configuration's, MLFLOW_TRACKING_URI, or RUNS_DIR/mlruns
    --project=NAME           of W&B, or MLflow's experiment; default: the configuration's
    --output_dir=DIR         for files of wandb or csv; default: the run's folder
    --artifacts              with params.yaml, run.json, events.jsonl and run.log
  config RUNS_DIR RUN        the configuration, a line for each field
    --given                  only what its command gives
    --changed                only what is other than the experiment's own; needs TensorFlow; [--registry=MODULE]
  checkpoints RUNS_DIR RUN   the checkpoints of a run: step, size, whether it is the best, what is wrong with it
  events RUNS_DIR RUN        what has happened in a run: starts, evaluations, checkpoints, rollbacks, ...
  evaluate RUNS_DIR RUN      evaluates its newest checkpoint, detached; --print: prints the command instead
    --checkpoint=NAME        another one: a step, or a name as checkpoints lists it, such as best/best_ckpt-100
  tensorboard RUNS_DIR RUN   starts TensorBoard for a run, and prints its address; --stop: ends it
  tag RUNS_DIR RUN...        --tag=A,B, --untag=A,B, --note=TEXT: words and a text that a run keeps
  archive RUNS_DIR RUN...    takes runs out of the list
  delete RUNS_DIR RUN...     moves runs to the trash; --forever: deletes what is there
  restore RUNS_DIR RUN...    brings back what was archived or deleted: [--name=NEW]

list, show, compare, config, checkpoints, events and tag print JSON with --json.""",
  ),
  'queue': (
    'queue add|list|move|... RUNS_DIR',
    'runs that wait for their turn, and who starts them',
    """Runs that wait for their turn, in files below RUNS_DIR, and the one dispatcher that starts them. docs/queue.md.

  queue add RUNS_DIR -- COMMAND
                             a job: any command, or the flags of train.py alone, with --model_dir
    --model_dir=FOLDER       the run's folder, if COMMAND has no --model_dir; FOLDER/run.log gets its output
    --gpus=N                 how many it needs; default: one, if there are any
    --max_restarts=N         how often it is tried again after it was preempted, killed or lost; default: 3
    --first, --before=JOB, --after=JOB
                             its place; default: the last
    --program=PATH           the program that flags alone are for; default: train.py
    --start, --slots=N       start a dispatcher in the background, unless there is one
  queue run RUNS_DIR         the dispatcher, in the foreground; what it has started goes on without it
    --slots=N                so many runs at once; default: the number of GPUs, or 1
    --gpus=0,1               the GPUs to hand out; default: those of CUDA_VISIBLE_DEVICES, or all
    --until_empty            end when no job waits or runs; the status is 1 if one has failed
    --alert=env:NAME, --alert=file:PATH
                             tell people what happens: where URLs of apprise's are; may be given several times;
                             default: env:OFFICIAL_EXT_ALERTS, if that is set
    --alert_on=WHAT          finished, failed, killed, hung, diverged, nan, queue_empty (default: all of these), or a
                             condition such as validation_accuracy>0.9; may be given several times
    --hung_minutes=N         a run that has come to no step for so long hangs; default: 30
  queue list RUNS_DIR        jobs: those that are over (--all), that run, and that wait, in order; --json
  queue move RUNS_DIR JOB    with --first, --last, --before=JOB or --after=JOB
  queue pause RUNS_DIR [JOB...]
                             start nothing, or not these; what runs goes on
  queue resume RUNS_DIR [JOB...]
                             take that back
  queue cancel RUNS_DIR JOB...
                             take jobs out; those that run save, stop (SIGTERM), and are not tried again
    --kill                   at once, by SIGKILL

A JOB is named by its number, or by its run's folder.""",
  ),
  'console': (
    'console RUNS_DIR',
    'the runs of a folder in a browser: watch, compare, start, stop',
    """Serves a web page of the runs below RUNS_DIR at http://127.0.0.1:8420, until Ctrl-C. It owns no run: when it
ends, or is killed, runs go on. docs/console.md tells more.

  --port=N                   default: 8420; 0: any that is free
  --host=ADDRESS             default: 127.0.0.1, this machine alone. Another address needs a token of 16 letters or more
                             in the environment variable OFFICIAL_EXT_CONSOLE_TOKEN, which the page asks for
  --registry=MODULE          a module of yours to import, which registers experiments; may be given several times
  --open                     open the page in the browser

It needs starlette and uvicorn: pip install 'official-ext[console]'.""",
  ),
  'sweep': (
    'sweep FILE [RUNS_DIR] [--slots=N]',
    'searches parameters by many runs',
    """Searches parameters by many runs, which the queue of RUNS_DIR starts. FILE is a sweep.yaml with the keys of
Weights & Biases, and `experiment`. docs/sweeps.md.

  sweep FILE [RUNS_DIR]      begins a sweep, or goes on with it, in the foreground; RUNS_DIR is `runs`, if not given
  sweep [RUNS_DIR] --set=NAME=V1,V2 --experiment=NAME
                             the same without a file: a grid, or what --method says
  sweep RUNS_DIR/SWEEP       goes on with a sweep that is there
    --slots=N                so many runs at once; default: as before, or the number of GPUs, or 1
    --set=NAME=V1,V2         a parameter and its values, besides or instead of the file's; may be given several times
    --method=METHOD          grid, random or bayes
    --metric=NAME --goal=minimize|maximize
    --run_cap=N, --seed=N, --mode=MODE, --name=NAME, --experiment=NAME
                             as in the file
    --start                  in the background
    -- FLAGS                 further flags of train.py, for all runs
  sweep list [RUNS_DIR]      the sweeps there; --json
  sweep show RUNS_DIR SWEEP  its points, the best first, the importance of parameters, the spread by seeds; --json,
                             with --histories and --importances
  sweep stop RUNS_DIR SWEEP  tries no further points; those that run save and stop, and go on with the sweep
  sweep retry RUNS_DIR SWEEP [POINT...]
                             tries points that have failed again
  sweep resume RUNS_DIR SWEEP POINT...
                             goes on with points that were ended early or stopped
  sweep delete RUNS_DIR SWEEP POINT...
                             moves the runs of points to the trash; they are not tried again

RUNS_DIR SWEEP may be written as one path, RUNS_DIR/SWEEP.""",
  ),
  'submit': (
    'submit --engine=ENGINE -- FLAGS',
    'trains on SLURM, Ray, Kubernetes, Vertex AI or SkyPilot',
    """Renders a job for an engine, and submits it by the engine's own command. Behind -- are the flags of train.py. A
run that was preempted goes on by itself. docs/submit.md.

  --render                   show the script or manifest, and submit nothing
  --output=FILE              write it to a file that only you can read, and submit nothing
  --follow                   tell how the run stands until it is over
  --name=NAME                the job's; default: like the folder's
  --program=PATH             in place of train.py
  --max_restarts=N           how often it is tried again
  --env=NAME=VALUE           a variable; may be given several times
  --engine_arg=TEXT          what has no option here: slurm, ray: an option (--qos=high); manifests: PATH=VALUE
  --array=FILE --runs_dir=DIR --slots=N
                             the trials of a sweep.yaml, so many at once (slurm, ray)
  --again                    though its engine may still have the run
--engine=local               the queue of the folder with the runs, and `launch` for several workers
  --num_workers=N, --gpus=N, --slots=N, --runs_dir=DIR
--engine=slurm               a batch script
  --nodes=N, --tasks_per_node=N, --gpus_per_task=N, --cpus_per_task=N, --mem=SIZE, --time=TIME, --partition=NAME,
  --account=NAME             as of sbatch
  --signal_seconds=N         when to save before the time is over; default: 120
--engine=ray                 a Ray job: --address=URL, --num_workers=N, --cpus=N, --gpus=N of each worker
--engine=jobset              a JobSet of Kubernetes
  --image=IMAGE, --num_workers=N, --gpus=N, --cpus=N, --memory=SIZE, --namespace=NAME, --grace_seconds=N
  --volume_claim=NAME --mount_path=PATH
                             where the model_dir is
  --secret=NAME              a Secret whose entries become variables
--engine=vertex              a CustomJob of Vertex AI
  --image=IMAGE --machine_type=TYPE --region=NAME, --project=NAME, --num_workers=N, --accelerator=TYPE --gpus=N,
  --time=SECONDSs, --service_account=NAME
--engine=skypilot            a managed job of SkyPilot
  --num_workers=N, --accelerators=L4:1, --infra=NAME, --cpus=N, --memory=N, --image=IMAGE, --use_spot, --workdir=DIR,
  --setup=COMMANDS""",
  ),
  'prepare': (
    'prepare INPUT OUTPUT [--tokenizer=FOLDER]',
    'turns files of texts, records or images into shards to train on',
    """Turns files into shards of ArrayRecord in the folder OUTPUT, in several processes. The same command goes on where
one has ended or was killed, and verifies what is there. docs/prepare.md.

INPUT is a file of JSON lines, JSON, Parquet or Arrow, a folder of such files, a folder of `datasets` (save_to_disk), or
a folder of images with a subfolder for each class. There may be several; a pattern is one where nothing is called so.

  --split=NAME               which part of a folder with several
  --shard_size=SIZE          so much input makes a shard, about; default: 64MB
  --on_bad_example=skip      leave out what cannot be used, and count it; default: error, which names the first
  --workers=N                so many processes; default: the number of cores
  --engine=ray               tasks of Ray instead, with --ray_address=ADDRESS on all machines of a cluster, which see
                             the same folders: pip install 'official-ext[ray]'
Texts become rows of tokens for task.train_data, under the names of its fields (`official-ext describe language_model`):
  --tokenizer=FOLDER         whose tokenizer is used, such as a model's folder
  --chat_template_path=FILE  a chat template in Jinja, in the place of the folder's
  --seq_length=N, --packing=none|best_fit|wrapped
                             the rows; default: 1024, none
  --max_input_length=N, --max_content_length=N
                             of prompts and what follows them, in tokens; default: 0, all
  --example_format=FORMAT    auto, text, messages, prompt_output or preference
  --text_column=NAME, --messages_column, --tools_column, --prompt_column, --output_column, --chosen_column,
  --rejected_column, --use_chat_template=true, --system_prompt=TEXT, --append_eos=false, --loss_on=WHAT
                             as in docs/text_data.md""",
  ),
  'data_service': (
    'data_service NAME [--dispatcher_address=HOST:PORT]',
    'makes the batches of an experiment for runs on other machines: tf.data service',
    f"""Starts the dispatcher of a tf.data service and a worker that makes the batches of an experiment, and prints the
flags for the run. Runs stay exact whatever happens to it: docs/data_service.md.

  --dispatcher_address=HOST:PORT
                             a further worker for the dispatcher that another of these commands has started
  --port=N                   of the dispatcher; default: 5050; 0: any
  --worker_port=N            of the worker; default: 0, any
  --host=NAME                by which other machines find this one; default: its own name
{_FLAGS}""",
  ),
  'launch': ('launch --num_workers=N -- FLAGS', 'trains with N processes on this machine', ''),
}
_WIDTH = 40


def overview() -> str:
  """The help of official-ext itself."""
  lines = ['Usage:']
  for usage, summary, _ in COMMANDS.values():
    line = f'  official-ext {usage}'
    lines += [f'{line:{_WIDTH}} {summary}'] if len(line) < _WIDTH else [line, f'{"":{_WIDTH}} {summary}']
  return '\n'.join([*lines, '', '`official-ext COMMAND --help` tells more about one; docs/ about all.'])


def of_command(command: str) -> str:
  """The help of one command that has no parser of its own."""
  usage, _, text = COMMANDS[command]
  flags = ' [FLAGS]' if _FLAGS in text else ''
  return f'Usage: official-ext {usage}{flags}\n\n{text}'
