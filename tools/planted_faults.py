"""The faults that `tools.planted` plants: at least one for each promise of docs/concepts/guarantees.md, and others."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Fault:
  """One fault, and the tests that should notice it.

  Attributes:
    name: of the fault.
    promise: that it breaks.
    function: the function to change, as `function` or `Class.method`, wherever it is; None: `new` is a further line of
      `module`.
    old: a piece of the function's text, without its indentation, which is there once.
    new: the text in its place.
    tests: names of test functions, in any file, of which one should fail.
    module: the end of a path in official_ext, if there is no function.
  """

  name: str
  promise: str
  function: str | None
  old: str
  new: str
  tests: tuple[str, ...]
  module: str = ''


FAULTS = (
  # A resume.
  Fault(
    'wrong_batch_at_resume',
    'killed at any moment, resumed bit for bit: the batch is a function of the step',
    'TrainingInput.after',
    'num_batches = (step + self.data_offset) * self._batches_per_step',
    'num_batches = (step + self.data_offset + (step > 0)) * self._batches_per_step',
    ('test_a_restored_trainer_resumes_bit_for_bit', 'test_killed_at_four_moments'),
  ),
  Fault(
    'wrong_seed_at_resume',
    'killed at any moment, resumed bit for bit: randomness is a function of seed and step',
    'TaskStep._key',
    'step=self._parts.global_step.read_value(),',
    "step=self._parts.global_step.read_value() + int(__import__('time').time()),",
    ('test_a_restored_trainer_resumes_bit_for_bit', 'test_killed_at_four_moments'),
  ),
  Fault(
    'same_draws_on_all_replicas',
    'randomness is a function of seed, step and replica',
    'TaskStep._key',
    'replica=tf.distribute.get_replica_context().replica_id_in_sync_group,',
    'replica=0,',
    ('test_every_replica_draws_for_itself_in_a_step',),
  ),
  Fault(
    'order_without_seed',
    'the batch is a function of seed and step',
    'shuffled_indices',
    '_uint64(stream_key(seed, _ORDER_STREAM))',
    '_uint64(stream_key(0, _ORDER_STREAM))',
    ('test_order_is_the_reference_order', 'test_seeds_give_different_orders_and_an_unset_seed_is_zero'),
  ),
  Fault(
    'order_by_replica',
    'another number of replicas trains on the same global batches',
    'Share.positions',
    'starts = steps[:, tf.newaxis] * self.global_batch_size + replicas * self.batch_size',
    'starts = (steps[:, tf.newaxis] * self.num_replicas + replicas) * self.batch_size + replicas',
    ('test_global_batch_does_not_depend_on_the_number_of_replicas', 'test_evaluation_sees_every_example_once'),
  ),
  Fault(
    'loops_from_the_resume',
    'loops end on the multiples of every interval',
    'Boundaries.steps_to_next',
    'ends.next_after(step)',
    'step + ends.next_after(0)',
    ('test_loops_end_on_the_multiples_of_every_interval_wherever_they_start',),
  ),
  Fault(
    'save_before_log',
    'the order at a boundary is log, evaluate, save',
    'Controller._run_loop',
    'evaluates = self._evaluates(course, step)\n',
    'evaluates = self._evaluates(course, step)\n      if self._saves(course, step):\n'
    '        self.save_checkpoint(may_fail=self._trains(course, step))\n',
    ('test_the_order_at_a_boundary_is_train_act_log_evaluate_save',),
  ),
  Fault(
    'pending_evaluation_forgotten',
    'an evaluation that is due after a resume is made',
    'Controller.restore_checkpoint',
    'self._evaluation_is_pending = self.checkpoint_manager.evaluation_is_pending(path)',
    'self._evaluation_is_pending = False',
    (
      'test_a_signal_in_an_evaluation_leaves_it_to_the_next_start',
      'test_an_evaluation_that_fails_again_and_again_costs_no_training',
    ),
  ),
  # Stored files.
  Fault(
    'unverified_manifest',
    'no good checkpoint is lost: a damaged one falls back to the one before',
    'find_damage',
    "if _sha256(opened) != entry['sha256']:",
    'if False:',
    ('test_any_damage_of_any_file_falls_back_to_the_checkpoint_before',),
  ),
  Fault(
    'missing_sync',
    'a power loss costs no checkpoint that counts',
    'write',
    'for file in files_of(path):\n    paths_lib.sync_to_disk(file)\n',
    'for file in files_of(path):\n',
    ('test_what_is_saved_reaches_the_disk_in_this_order', 'test_no_state_loses_what_was_synced'),
  ),
  Fault(
    'rename_without_sync',
    'a power loss leaves a file or its predecessor',
    'write_atomically',
    'sync_descriptor(f.fileno())',
    'pass',
    (
      'test_what_is_saved_reaches_the_disk_in_this_order',
      'test_no_state_loses_what_was_synced',
    ),
  ),
  Fault(
    'write_in_place',
    'a file that is replaced is whole at any moment',
    'write_atomically',
    'os.replace(temporary, path)',
    'shutil.copyfile(temporary, path); os.remove(temporary)',
    (
      'test_a_file_that_is_written_anew_keeps_its_permissions_and_leaves_nothing_beside_it',
      'test_what_is_saved_reaches_the_disk_in_this_order',
      'test_no_state_loses_what_was_synced',
    ),
  ),
  Fault(
    'one_checkpoint_too_few',
    'as many checkpoints are kept as were asked for',
    'Retention._beyond_number',
    'older = paths[: -self._max_to_keep]',
    'older = paths[: -max(1, self._max_to_keep - 1)]',
    ('test_saves_restores_and_keeps',),
  ),
  Fault(
    'two_trainings_in_a_folder',
    'one training a folder',
    'RunLock._open',
    'locked = local_files.try_lock(self._file)',
    'locked = True',
    (
      'test_a_second_training_is_refused_in_a_line_that_names_the_first',
      'test_of_trainings_that_begin_together_one_gets_the_folder',
    ),
  ),
  Fault(
    'paths_as_patterns',
    'paths are literal',
    'names',
    'os.listdir(',
    "(lambda folder: [os.path.basename(p) for p in __import__('glob').glob(folder + '/*')])(",
    ('test_a_folder_is_listed_whatever_it_is_called',),
  ),
  Fault(
    'nan_is_best',
    'the best checkpoints belong to the training: NaN never wins',
    'measurement',
    'value if math.isfinite(value) else None',
    'value',
    ('test_a_nan_metric_never_wins',),
  ),
  Fault(
    'one_failed_save_too_many',
    'a full disk damages nothing: training ends after three failed saves',
    'Saving._note_failure',
    'if self._num_failed >= _MAX_FAILED_SAVES:',
    'if False:',
    ('test_a_disk_that_stays_full_ends_training_after_three_failed_saves',),
  ),
  Fault(
    'unlogged_save',
    'events are on the disk before the checkpoint behind them',
    'Saving.save',
    'self._events.writers.sync()  # A run that is restored from this checkpoint does not write these events again.',
    'pass',
    ('test_events_are_on_the_disk_before_the_checkpoint_behind_them',),
  ),
  # Restores.
  Fault(
    'incomplete_restore',
    'a restore is complete or an error',
    'Restoring.restore',
    'match.check(path)',
    'pass',
    ('test_another_model_restores_nothing_and_reports_it', 'test_differences_are_named'),
  ),
  Fault(
    'late_variables_unchecked',
    'a restore is complete or an error, for models built by their first step too',
    'Restoring.completing',
    'contents_lib.Contents(path).match(self._checkpoint, self._without).check(path)',
    'pass',
    ('test_what_cannot_be_traced_is_held_against_the_checkpoint_after_its_first_step',),
  ),
  Fault(
    'averages_stay',
    'moving averages are restored in place',
    'Evaluator._use_averaged_weights',
    'if self._ema is not None and averaged != self._ema.is_swapped:',
    'if self._ema is not None and averaged and not self._ema.is_swapped:',
    ('test_evaluation_uses_the_average_and_gives_back_every_bit',),
  ),
  Fault(
    'endless_evaluation',
    'evaluations end',
    'never_ends',
    'return True\n',
    'return False\n',
    ('test_all_of_data_that_repeat_is_refused', 'test_a_dataset_that_repeats_is_refused_before_training'),
  ),
  Fault(
    'workers_not_compared',
    'workers are compared',
    'Workers._first_difference',
    'for index in range(1, self.count):',
    'for index in range(self.count, self.count):',
    ('test_workers_talk_disagree_and_notice_an_end', 'test_workers_must_have_the_same_data_and_code'),
  ),
  # Interruptions.
  Fault(
    'signal_ignored',
    'SIGTERM, SIGINT and SIGHUP save',
    'PreemptionWatch._note',
    'self.requested = signal.Signals(number).name',
    'pass',
    (
      'test_a_signal_in_training_saves_at_the_end_of_the_loop',
      'test_a_preempted_run_saves_exits_75_and_resumes',
    ),
  ),
  Fault(
    'hang_unseen',
    'hung runs end',
    'HangWatch._watch',
    'elif still >= self._limit:',
    'elif False:',
    ('test_a_run_that_hangs_reports_where_and_ends_with_75',),
  ),
  Fault(
    'failed_evaluation_costs_training',
    'failures beside the training cost none of it',
    'Controller._saving_on_the_way_out',
    'if self._saving.steps_are_done and self._step_now() == step and self._saving.is_possible_after(error):',
    'if False:',
    (
      'test_an_evaluation_that_fails_again_and_again_costs_no_training',
      'test_what_fails_beside_the_training_does_not_cost_it',
    ),
  ),
  Fault(
    'nan_step_applied',
    'steps that are not finite change nothing',
    'GuardedUpdate._is_ok',
    'return ok\n',
    'return tf.logical_or(ok, True)\n',
    ('test_a_nan_step_leaves_every_bit', 'test_training_continues_as_if_the_bad_batches_had_not_been_there'),
  ),
  Fault(
    'rollback_repeats_the_batches',
    'rollbacks continue with other batches',
    'RollbackAction._roll_back',
    'bad_steps[-1] + trainer.data_offset',
    'bad_steps[0] - 1 + trainer.data_offset',
    ('test_a_rollback_continues_with_the_batches_that_follow',),
  ),
  Fault(
    'reused_process_number',
    'live processes are identified',
    'identity_of',
    'pid_start=start_of(pid),',
    'pid_start=None,',
    (
      'test_this_process_is_alive',
      'test_a_number_that_is_used_again_is_another_process',
      'test_a_lock_dies_with_its_process_and_the_next_training_begins_at_once',
    ),
  ),
  # Steps.
  Fault(
    'skipped_all_reduce',
    'gradients are summed over the replicas',
    'GuardedUpdate.reduced_gradients',
    'num_replicas_in_sync > 1:',
    'num_replicas_in_sync > 1000:',
    ('test_every_shape_computes_the_formulas',),
  ),
  Fault(
    'no_sum_between_programs',
    'gradients are summed over the replicas',
    'SplitExecution._on_replica',
    'sum_over_replicas(packed)',
    'packed',
    ('test_the_values_are_those_of_the_graph',),
  ),
  Fault(
    'sum_of_micro_batches',
    'accumulated micro-batches equal one large batch',
    'GuardedUpdate.passes',
    'gradients = [gradient_tap.scale(g, 1 / len(outputs)) for g in gradients]',
    'pass',
    ('test_accumulated_micro_batches_equal_one_large_batch',),
  ),
  Fault(
    'equal_weights',
    'micro-batches weigh by the tokens in them',
    'GuardedUpdate._weights',
    'return None if weights[0] is None else',
    'return None if True else',
    ('test_all_tokens_of_an_update_count_the_same_in_micro_batches_and_on_replicas',),
  ),
  Fault(
    'batches_weigh_the_same',
    'evaluation is exact: every example counts once',
    'BatchAxes.num_examples',
    'return tf.cast(counts[0], tf.float32) if counts else tf.constant(1.0)',
    'return tf.cast(counts[0] > 0, tf.float32) if counts else tf.constant(1.0)',
    ('test_the_weight_of_a_batch_is_its_number_of_examples',),
  ),
  Fault(
    'metrics_of_the_chief',
    'evaluation is exact over several workers',
    'Evaluator.eval_reduce',
    'if self._aggregates:',
    'if False:',
    ('test_evaluation_over_workers_is_exact',),
  ),
  # Around the run.
  Fault(
    'lost_event',
    'every event reaches the writers',
    'RunEvents.report',
    'self.writers.write(event, step, values)\n',
    "if event != 'eval':\n    self.writers.write(event, step, values)\n",
    ('test_the_order_at_a_boundary_is_train_act_log_evaluate_save', 'test_killed_at_four_moments'),
  ),
  Fault(
    'wrong_exit_status',
    'a diverged run ends with status 3, a preempted one with 75',
    'report',
    'return error.exit_status',
    'return 1',
    ('test_what_is_foreseen_is_one_line',),
  ),
  Fault(
    'open_console_route',
    'the console tells nothing without its token',
    'Guard._refuse',
    "if path.startswith('/api/') and path not in _OPEN and not by_password and not self._has_cookie(headers):",
    "if path.startswith('/api/runs') and path not in _OPEN and not by_password and not self._has_cookie(headers):",
    ('test_without_the_password_nothing_is_shown',),
  ),
  Fault(
    'console_for_other_sites',
    'no other site changes anything in the console',
    'Guard._refuse',
    'if origin is not None and origin != f\'http://{headers.get("host")}\':',
    'if False:',
    ('test_a_change_from_another_site_is_refused',),
  ),
  Fault(
    'import_upward',
    'imports go downward',
    None,
    '',
    'def _upward():\n  from official_ext.training.loop import train_lib  # noqa: F401',
    ('test_imports_go_downward',),
    module='base/errors.py',
  ),
  Fault(
    'changed_data_unreported',
    'changed data is reported',
    'differences',
    'names = [name for name in old if name in new and old[name] != new[name]]',
    'names = []',
    ('test_a_run_that_resumes_with_other_examples_reports_it',),
  ),
  Fault(
    'changed_code_unreported',
    'changed code is reported',
    'describe_changes',
    'if old.get(name) != new.get(name):',
    'if False:',
    ('test_a_resumed_run_names_the_files_that_have_changed',),
  ),
  Fault(
    'other_versions_unreported',
    'changed code is reported: other versions of packages too',
    'differences',
    'if before.get(name) != now.get(name)',
    'if False',
    ('test_packages_that_an_older_version_did_not_note_are_not_named',),
  ),
  Fault(
    'branch_without_asking',
    "starting from another run's checkpoint never mixes two trainings in a folder",
    'choose_start',
    'if not branch:',
    'if False:',
    ('test_another_checkpoint_over_checkpoints_is_refused_and_writes_nothing',),
  ),
  Fault(
    'branch_deletes',
    'a copied or moved run, and a branch, keep what was there',
    'begin_line',
    '_set_aside(model_dir, Origin(**last), subfolders)',
    'pass',
    ('test_a_branch_inside_a_run_sets_aside_what_came_after',),
  ),
  Fault(
    'hung_by_the_clock',
    'clock changes make no run hang',
    '_why_hung',
    "silent = time.time() - beat if beats is None else time.monotonic() - beats['heartbeat']",
    'silent = time.time() - beat',
    ('test_a_clock_that_is_set_anew_makes_no_run_hang',),
  ),
  Fault(
    'skips_uncounted',
    'examples that are skipped are counted',
    'ExampleLog.add_skip',
    'self._skipped.add(position)',
    'pass',
    ('test_a_damaged_array_record_is_skipped_and_counted',),
  ),
  Fault(
    'documents_see_each_other',
    'packed documents do not see each other',
    'mask',
    'seen &= (looking[:, :, tf.newaxis] == segments[:, tf.newaxis]) & (looking > 0)[:, :, tf.newaxis]',
    'seen &= (looking > 0)[:, :, tf.newaxis]',
    ('test_a_token_sees_its_own_document_within_the_window',),
  ),
)
