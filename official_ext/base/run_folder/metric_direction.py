"""Whether a higher or a lower value of a metric is better: one table of names, for all code that chooses a best value.

A name is read like an English noun phrase: its last word counts. `accuracy_loss` is a loss, `error_free_accuracy` an
accuracy, and `loss_scale` neither. Words without a direction, such as `rate`, `mean`, `top 5` or `validation`, are
passed over. The direction of a name that the table does not know is unknown; nothing guesses.
"""

import functools
import re

WORDS = {'max': 'higher', 'min': 'lower'}
COMPARISONS = {word: mode for mode, word in WORDS.items()}  # Values of `trainer.best_checkpoint_metric_comp`.

# Names of one or several words, in lower case, with # for a number.
_LOWER = """
loss; losses; logloss; cost; regret; hinge; poisson; logcosh; log cosh; crps; pinball; deviance
nll; negative likelihood; negative log likelihood; neg likelihood; neg log likelihood
negative loglikelihood; neg loglikelihood; negative elbo; neg elbo
crossentropy; cross entropy; xent; bce; cce; ce; kld; kl divergence; divergence
perplexity; perplexities; ppl; bpb; bpc; bpd
error; errors; err; error count; mistakes; failure rate; miss rate; mae; mse; rmse; nrmse; nmse; mape; smape; mase; msle
rmsle; wer; cer; ter; mer; der; jer; wil; false positive; false positives; false negative; false negatives
fpr; fnr; frr; eer; hter; apcer; bpcer; acer; dcf; mindcf; id switches; idsw
brier; ece; calibration; miscalibration
fid; kid; cfid; fvd; lpips; niqe; brisque
distance; distances; chamfer; hausdorff; hd #; assd; asd; epe; aepe; mpjpe; ade; fde; mean rank; davies bouldin; inertia
latency; time; times; ms; msec; milliseconds; seconds; runtime; real time factor; rtf
"""
_HIGHER = """
accuracy; accuracies; acc; acc norm; correct; correctness; exact match; em; strict match
likelihood; log likelihood; loglikelihood
auc; auroc; auprc; aupr; aucpr; gini; lrap
precision; precisions; prec; recall; recalls; sensitivity; specificity; tpr; tnr
true positive; true positives; true negative; true negatives
f #; f beta; fbeta; f score; fscore; f measure; fmeasure
ap; aps; apm; apl; ar; ars; arm; arl; armax; map; maph; nds; mota; idf #; hota
iou; miou; fwiou; dice; jaccard; pq; rq; sq; quality; overlap
bleu; sacrebleu; rouge; rougel; rougelsum; rouge l; rouge lsum; meteor; chrf; chrf++; cider; spice; bleurt; comet
bertscore; bert score; anls; clip score; clipscore
psnr; ssim; snr; sdr; sisdr; signal to noise ratio; pesq; stoi; mos
is; inception; inception score
r #; r squared; rsquared; explained variance
ndcg; dcg; mrr; reciprocal rank; hit; hits; hit ratio; pass #; pass k; pass at #; pass at k; pass rate
mcc; matthews; correlation; correlations; corr; corrcoef; correlation coefficient; pearson; pearsonr; pearson r
spearman; spearmanr; spearman r; spearman rho; kendall; kendalltau; kendall tau; ccc; concordance; c index
concordance index; kappa; similarity; rand; nmi; ami; ari; silhouette; homogeneity; completeness; v measure; purity
calinski harabasz; reward; rewards; return; returns; win; wins; winrate; elo; success; successes; solved
throughput; fps; qps; tps; mfu
neg log loss; neg brier score; neg max error; neg mean absolute error; neg mean absolute percentage error
neg mean squared error; neg mean squared log error; neg median absolute error; neg root mean squared error
neg root mean squared log error; neg mean poisson deviance; neg mean gamma deviance
"""  # The last are the names of scikit-learn's scorers: errors with their sign changed.
_PASSED_OVER = """
train; training; val; valid; validation; eval; evaluation; test; testing; dev; holdout
mean; avg; average; averaged; median; macro; micro; weighted; sample; samples; total; sum; overall; all; global; none
final; last; best; current; so; far; running; ema; swa; raw; smoothed; step; epoch; batch; max; min; worst
score; scores; metric; metrics; value; values; rate; percent; percentage; pct
at; top; k; n; #; p #; roc; pr; prc; ovr; ovo; small; medium; large; balanced; adjusted; normalized
"""
# Words before the name of a metric that may turn its direction round.
_TURNING = frozenset(
  """neg negative minus inverse inverted inv reciprocal negated delta change changes diff difference gap drop std stddev
  stdev stderr var variance deviation ratio scale improvement reduction""".split()
)
_OF_A_SECOND = frozenset('second seconds sec s'.split())
_COUNTED = frozenset(
  """batch batches example examples frame frames image images item items query queries record records request requests
  sample samples sequence sequences step steps token tokens update updates word words""".split()
)
_BITS = frozenset(('bits', 'nats'))


def _entries(text: str) -> frozenset[str]:
  return frozenset(entry.strip() for line in text.splitlines() for entry in line.split(';') if entry.strip())


_TABLE = {**dict.fromkeys(_entries(_LOWER), 'min'), **dict.fromkeys(_entries(_HIGHER), 'max')}
_NEUTRAL = _entries(_PASSED_OVER)
_LONGEST = max(len(entry.split()) for entry in _TABLE)
_KNOWN_WORDS = (
  {word for entry in (*_TABLE, *_NEUTRAL) for word in entry.split()} | _TURNING | _OF_A_SECOND | _COUNTED | _BITS
)


@functools.lru_cache(4096)
def direction(metric: str) -> str | None:
  """Whether a higher ('max') or a lower ('min') value of a metric is better, by its name; None if that is unknown.

  Args:
    metric: a name in logs; `|` and `/` separate the levels of nested ones, of which the last with a meaning counts.
  """
  for level in reversed(re.split(r'[|/]', re.sub(r'\([A-Z]\)$', '', metric))):
    words = _words(level)
    if words:
      found, is_decided = _of_words(words)
      if is_decided:
        return found
  return None


def _of_words(words: list[str]) -> tuple[str | None, bool]:
  """(the direction of a level of a name, whether the levels before it do not count)."""
  end = len(words)
  while end:
    for start in range(max(0, end - _LONGEST), end):
      found = _TABLE.get(' '.join(words[start:end]))
      if found is not None:
        return (None if _TURNING.intersection(words[:start]) else found), True
    if end > 2 and words[end - 2] == 'per':
      if words[end - 3] in _BITS:
        return 'min', True
      if words[end - 1] in _OF_A_SECOND and words[end - 3] in _COUNTED:
        return 'max', True
      end -= 2
    elif end > 1 and ' '.join(words[end - 2 : end]) in _NEUTRAL:
      end -= 2
    elif words[end - 1] in _NEUTRAL:
      end -= 1
    else:
      return None, True
  # `top_5` without a noun is an accuracy.
  return ('max', True) if 'top' in words else (None, False)


def _words(text: str) -> list[str]:
  """The words of a name in lower case: `valLoss`, `mAP50`, `mIoU` and `F1Score` are split too; # is a number."""
  text = re.sub(r'^1\s*-(?=\s*[A-Za-z])', 'minus ', text.strip()).replace('IoU', 'Iou')
  found: list[str] = []
  for chunk in re.findall(r'[A-Za-z0-9]+(?:\+\+)?', text):
    found += _known(chunk) or [
      word
      for part in re.findall(r'[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+', chunk)
      for word in _known(part) or [part.lower()]
    ]
  return found


def _known(chunk: str) -> list[str]:
  """The words of a chunk that is a known word, or one with a number at its end; [] of others."""
  if chunk.isdigit():
    return ['#']
  word = chunk.lower()
  stem = word.rstrip('0123456789')
  if stem == word:
    return [word] if word in _KNOWN_WORDS else []
  return [stem, '#'] if stem in _KNOWN_WORDS else []


def mode_of(metric: str, mode: str = 'auto') -> str:
  """Whether a higher ('max') or a lower ('min') value is better; 'auto' goes by the metric's name: see `direction`.

  Raises:
    ValueError: `mode` is invalid, or it is 'auto', and the name does not imply it.
  """
  if mode not in ('auto', 'max', 'min'):
    raise ValueError(f"expected 'auto', 'max' or 'min', got {mode!r}")
  found = direction(metric) if mode == 'auto' else mode
  if found is None:
    raise ValueError(f'the name {metric} does not imply whether higher or lower is better; set it to max or min')
  return found


def check_agrees(metric: str, mode: str, given: str | None = None) -> None:
  """Refuses a direction that contradicts the name of a metric.

  Args:
    metric: its name.
    mode: 'max' or 'min', the direction that was set.
    given: the word that was set, for the message; None: `mode`.

  Raises:
    ValueError: the table has the other direction.
  """
  found = direction(metric)
  if found not in (None, mode):
    raise ValueError(
      f'{given or mode} contradicts the name {metric}, of which {WORDS[found]} is better; leave it out, or rename the '
      'metric'
    )


def comparison(metric: str, given: str) -> str:
  """Which values of `trainer.best_checkpoint_eval_metric` make a checkpoint the best one, 'higher' or 'lower'.

  Args:
    metric: the metric's name.
    given: `trainer.best_checkpoint_metric_comp`. 'auto': as the name implies, and else 'higher', as in Model Garden.
  """
  return given if given != 'auto' else WORDS[direction(metric) or 'max']
