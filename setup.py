"""Package metadata. The ranges here are supported; constraints.txt holds the versions that were tested."""

import pathlib
import re

import setuptools

_ROOT = pathlib.Path(__file__).parent


def _version() -> str:
  """The version that official_ext/base/__init__.py states."""
  text = (_ROOT / 'official_ext/base/__init__.py').read_text()
  return re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE).group(1)


setuptools.setup(
  name='official-ext',
  version=_version(),
  description='Experiments on TensorFlow Model Garden: small tasks, long runs, exact resume.',
  long_description=(_ROOT / 'README.md').read_text(),
  long_description_content_type='text/markdown',
  license='Apache-2.0',
  license_files=['LICENSE', 'official_ext/operations/console/static/vendor/uPlot.LICENSE'],
  python_requires='>=3.11,<3.14',
  # One top-level package: a checkout's `experiments` are installed as `official_ext.experiments`.
  packages=[
    *setuptools.find_packages(include=['official_ext*']),
    *(f'official_ext.{name}' for name in setuptools.find_packages(include=['experiments*'])),
  ],
  package_dir={'official_ext.experiments': 'experiments'},
  package_data={
    'official_ext': ['py.typed'],
    '': ['*.gin', '*.md', '*.txt', '*.yaml'],
    'official_ext.cli': ['templates/**/*.txt'],
    'official_ext.operations.console': ['static/**/*'],
  },
  install_requires=[
    'absl-py>=1.4',
    'array-record>=0.6',
    'gin-config>=0.5',
    'importlib_resources',  # tensorflow-datasets imports it, without declaring it.
    'numpy>=2.0',
    'packaging>=23',
    'pillow>=10.1',
    'psutil>=5.9',
    'pyarrow>=15',
    'PyYAML>=6.0',
    'scikit-learn>=1.4',
    'setuptools<81',  # tensorflow-hub imports pkg_resources, and Python 3.12 brings none.
    'tensorflow>=2.20,<2.22',  # Model Garden asks for 2.20: see docs/how_to/newer_tensorflow.md.
    'tensorflow-datasets>=4.9.7,<5',
    'tf-keras>=2.20,<2.22',
    'tf-models-official>=2.20,<2.21',
  ],
  extras_require={
    'console': ['starlette>=0.40', 'uvicorn>=0.30'],
    'gguf': ['gguf>=0.17'],
    'huggingface': ['datasets>=2.19'],
    'language_models': ['jinja2>=3.1', 'safetensors>=0.5', 'tokenizers>=0.20'],
    'docs': ['mkdocs-material>=9.5,<10'],
    'gpu': ['nvidia-ml-py>=12', 'tensorflow[and-cuda]>=2.20,<2.22'],
    'litert': ['ai-edge-litert>=2'],
    'mcp': ['mcp>=2'],
    'mlflow': ['mlflow-skinny>=3', 'alembic>=1.13', 'sqlalchemy>=2'],
    'notifications': ['apprise>=1.9'],
    'onnx': ['onnx>=1.17', 'onnxruntime>=1.20', 'tf2onnx>=1.17'],
    'query': ['duckdb>=1.1'],
    'ray': ['ray[default]>=2.40'],
    'reinforcement': ['gymnasium>=1'],
    'serve': ['prometheus_client>=0.20', 'starlette>=0.40', 'uvicorn>=0.30'],
    'sweeps': ['optuna>=4'],
    'wandb': ['wandb>=0.31'],
    'test': [
      'accelerate>=1',
      'ai-edge-litert>=2',
      'apprise>=1.9',
      'axe-playwright-python>=0.1.7',
      'bitsandbytes>=0.49',
      'duckdb>=1.1',
      'gguf>=0.17',
      'gymnasium>=1',
      'jinja2>=3.1',
      'mcp>=2',
      'mkdocs-material>=9.5,<10',
      'mlflow-skinny>=3',
      'mypy',
      'onnx>=1.17',
      'onnxruntime>=1.20',
      'optuna>=4',
      'peft>=0.19',
      'playwright>=1.40',  # The browser is the system's own.
      'portpicker',
      'prometheus_client>=0.20',
      'pytest>=8',
      'pytest-cov>=7',
      'pytest-split>=0.10',
      'pytest-timeout>=2.3',
      'pytest-xdist>=3.5',
      'ruff',
      'safetensors>=0.5',
      'starlette>=0.40',
      'tf2onnx>=1.17',
      'tokenizers>=0.20',
      'torch>=2.9',
      'transformers>=5,<6',
      'trl>=1',
      'uvicorn>=0.30',
      'wandb>=0.31',
      'xllamacpp>=2026.10',  # llama.cpp, to run GGUF files.
    ],
  },
  entry_points={'console_scripts': ['official-ext = official_ext.cli.main:main']},
)
