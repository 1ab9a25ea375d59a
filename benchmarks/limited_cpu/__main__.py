"""Runs a command on this machine as on an older processor: `python -m benchmarks.limited_cpu avx2 COMMAND ...`.

The command and its processes see CPUID and /proc/cpuinfo without the instructions of newer kinds, and so do all
libraries in them: see cpuid.c. Clock, caches and memory stay those of this processor. It requires Linux, a processor
that lets CPUID fault, `cc`, and the right to mount (root, or namespaces of users).
"""

from collections.abc import Sequence
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

_CPUINFO = pathlib.Path('/proc/cpuinfo')
_AMX = r'amx_\w+|avx512_fp16|avx_ifma|avx_vnni_int\d+|avx_ne_convert'
_BF16 = rf'{_AMX}|avx512_bf16|avx_vnni'
# Kind of processor, by the newest of its vector instructions -> the flags in /proc/cpuinfo that it does not have.
NEWER = {
  'avx512_bf16': _AMX,
  'avx512f': _BF16,
  'avx2': rf'{_BF16}|avx512\w+|gfni|vaes|vpclmulqdq',
}
_MOUNTED = 'mount --bind "$0" /proc/cpuinfo && exec env "$@"'


def limited_cpuinfo(text: str, kind: str) -> str:
  """/proc/cpuinfo of a processor of that kind.

  Args:
    text: the file of this machine.
    kind: a key of `NEWER`.
  """
  newer = re.compile(rf' (?:{NEWER[kind]})(?= |$)')
  lines = (newer.sub('', line) if line.startswith('flags') else line for line in text.splitlines())
  return '\n'.join(f'{line}, limited to {kind}' if line.startswith('model name') else line for line in lines) + '\n'


def run(kind: str, command: Sequence[str]) -> int:
  """The status of a command that ran as on a processor of that kind; 128 and its number after a signal, as in a shell.

  Raises:
    SystemExit: this machine cannot do it.
  """
  text = _CPUINFO.read_text() if _CPUINFO.exists() else ''
  if 'cpuid_fault' not in text:
    raise SystemExit('error: this machine does not let CPUID fault (no `cpuid_fault` in /proc/cpuinfo)')
  for program in ('cc', 'unshare'):
    if not shutil.which(program):
      raise SystemExit(f'error: no `{program}` on this machine: install a C compiler and util-linux')
  with tempfile.TemporaryDirectory(prefix='limited-cpu-') as name:
    folder = pathlib.Path(name)
    cpuinfo, library = folder / 'cpuinfo', folder / 'cpuid.so'
    cpuinfo.write_text(limited_cpuinfo(text, kind))
    source = pathlib.Path(__file__).with_name('cpuid.c')
    subprocess.run(
      ['cc', '-O1', '-shared', '-fPIC', f'-DKIND={kind.upper()}', '-o', library, source, '-ldl'], check=True
    )
    alone = ['unshare', '--mount', *([] if os.geteuid() == 0 else ['--map-root-user'])]
    status = subprocess.run([*alone, 'sh', '-c', _MOUNTED, cpuinfo, f'LD_PRELOAD={library}', *command]).returncode
  return status if status >= 0 else 128 - status


def main() -> int:
  """Runs the command; its status."""
  if len(sys.argv) < 3 or sys.argv[1] not in NEWER:
    raise SystemExit(f'usage: python -m benchmarks.limited_cpu {{{",".join(NEWER)}}} COMMAND ...')
  return run(sys.argv[1], sys.argv[2:])


if __name__ == '__main__':
  sys.exit(main())
