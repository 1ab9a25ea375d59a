"""The table of names of metrics, and how a name is read."""

import pytest

from official_ext.base.run_folder import metric_direction

LOWER = """
loss validation_loss val_loss training_loss valLoss total_loss nested|loss loss/train dice_loss giou_loss accuracy_loss
reward_loss hamming_loss log_loss logLoss val_loss_ema train_loss_step best_validation_loss perplexity val_ppl
bits_per_byte bits_per_dim nats_per_token fid fid_score FID frechet_inception_distance kid_score brier brier_score error
error_rate top_5_error error_top_1 mean_absolute_error root_mean_squared_error MAE val_mae mse rmse mape msle wer cer
ter word_error_rate ece expected_calibration_error categorical_crossentropy cross_entropy hinge lpips nll
negative_log_likelihood neg_log_likelihood negative-likelihood step_time latency_ms latency_p95 seconds_per_step hter
eer chamfer_distance hausdorff hd95 epe cosine_distance false_positive_rate kl_divergence errors_per_second heads/a/loss
loss_per_token
""".split()
HIGHER = """
accuracy validation_accuracy val_acc top_5_accuracy accuracy_top_5 acc@1 error_free_accuracy auc roc_auc ROC_AUC f1
f1_score F1Score f1-score macro_f1 f_beta f0.5 precision@10 recall_at_k average_precision mAP mAP50 mAP50-95
metrics/mAP50-95(B) mAP@[.5:.95] AP AP50 APs ARmax100 mask_AP mean_iou meanIoU mIoU per_class_iou/7 dice_score bleu
BLEU-4 rouge1 rougeLsum meteor chrf++ psnr ms_ssim is inception_score r2 R2 r_squared ndcg@10 mrr hit_rate hits@10 mcc
matthews_corrcoef pearson_spearman_mean kappa mean_reward reward_mean episode_return win_rate pass@k pass@1 exact_match
squad/em acc_norm,none panoptic_quality/All_pq top_5 top_k log_likelihood cosine_similarity true_positive_rate
neg_mean_squared_error neg_log_loss tokens_per_second heads/a/f1 set1|f1 validation|accuracy rewards/accuracies
""".split()
UNKNOWN = """
score validation_score loss_scale learning_rate elbo inverse inverse_loss neg_loss 1-accuracy one_minus_ssim
loss_reduction accuracy_gap accuracy_std delta_loss win_loss_ratio policy_entropy grad_norm num_steps kl rewards/std
accuracy_threshold top_p map_size mean accuracy/threshold loss/scale reward_margin validation x |
""".split()


@pytest.mark.parametrize(('names', 'expected'), [(LOWER, 'min'), (HIGHER, 'max'), (UNKNOWN, None)])
def test_direction(names, expected):
  assert {name: metric_direction.direction(name) for name in names} == dict.fromkeys(names, expected)


def test_no_entry_of_the_table_is_in_both_lists():
  assert not metric_direction._entries(metric_direction._LOWER) & metric_direction._entries(metric_direction._HIGHER)


def test_a_direction_that_contradicts_the_name():
  metric_direction.check_agrees('fid_score', 'min')
  metric_direction.check_agrees('elbo', 'min')
  with pytest.raises(
    ValueError, match='^higher contradicts the name fid_score, of which lower is better; leave it out'
  ):
    metric_direction.check_agrees('fid_score', 'max', 'higher')


def test_comparison_of_best_checkpoints():
  assert [metric_direction.comparison(name, 'auto') for name in ('fid', 'accuracy', 'elbo')] == [
    'lower',
    'higher',
    'higher',
  ]
  assert metric_direction.comparison('elbo', 'lower') == 'lower'
