"""A script's source: its analysis without running it."""

import ast
import builtins
from collections.abc import Iterator
import io
import os
import symtable
import tokenize

import official_ext as ext

_NAMESPACES = ('globals', 'locals', 'vars')  # Calls through which a name can be read as a string.
_TENSORFLOW = {'tensorflow', 'tf_keras', 'keras', 'official', 'official_ext', 'orbit'}
_OTHER_FRAMEWORKS = {'torch', 'jax', 'transformers', 'trl', 'peft', 'unsloth', 'accelerate', 'lightning', 'diffusers'}


class Script:
  """A Python file, read once.

  Attributes:
    path: as it was given, for messages.
    absolute_path: of the file.
    content: its bytes.
    code: to be executed.
  """

  def __init__(self, path: str):
    """Reads and compiles a file.

    Raises:
      UserError: it cannot be read, or is not Python.
    """
    self.path, self.absolute_path = path, os.path.abspath(path)
    if not path.endswith('.py'):
      raise ext.UserError(f'script: {path}: expected the path of a Python file, such as custom01.py')
    try:
      with open(path, 'rb') as file:
        self.content = file.read()
    except OSError as error:
      raise ext.UserError(f'script: {path}: cannot be read: {error.strerror}') from error
    try:
      encoding, _ = tokenize.detect_encoding(io.BytesIO(self.content).readline)
      text = self.content.decode(encoding)
      self._tree = ast.parse(text, self.absolute_path)
      self.code = compile(self._tree, self.absolute_path, 'exec', dont_inherit=True)
      self._table = symtable.symtable(text, self.absolute_path, 'exec')
    except SyntaxError as error:
      place = f'{path}:{error.lineno}' if error.lineno else path
      raise ext.UserError(f'script: {place}: {type(error).__name__}: {error.msg}') from error
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
      raise ext.UserError(f'script: {path}: is not valid Python: {type(error).__name__}: {error}') from error
    self._strings = self._strings_that_name()

  def _strings_that_name(self) -> set[str]:
    """The strings in a script that looks names up in its namespace; nothing if it does not."""
    nodes = list(ast.walk(self._tree))
    calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if not set(calls) & set(_NAMESPACES):
      return set()
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}

  def reads(self, name: str) -> bool:
    """Whether the script reads a variable of its module, at its top or in a function."""
    return name in self._strings or any(is_read for symbol, is_read, _ in self._symbols() if symbol == name)

  def sets(self, name: str) -> bool:
    """Whether the script gives a variable of its module a value anywhere; it may if it imports `*`."""
    return (
      self._imports_star()
      or name in self._strings
      or any(is_set for symbol, _, is_set in self._symbols() if symbol == name)
    )

  def unset_names(self) -> set[str]:
    """The variables of the module that the script reads, and gives no value anywhere; none if it imports `*`."""
    if self._imports_star():
      return set()
    symbols = list(self._symbols())
    known = {symbol for symbol, _, is_set in symbols if is_set} | set(dir(builtins))
    return {symbol for symbol, is_read, _ in symbols if is_read} - known

  def _imports_star(self) -> bool:
    return any(
      isinstance(node, ast.ImportFrom) and any(alias.name == '*' for alias in node.names)
      for node in ast.walk(self._tree)
    )

  def _symbols(self, table: symtable.SymbolTable | None = None) -> Iterator[tuple[str, bool, bool]]:
    """(name, whether it is read, whether it is set) for each use of a variable of the module in each scope."""
    is_module, table = table is None, table or self._table
    for symbol in table.get_symbols():
      if is_module or symbol.is_global():
        is_set = symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()
        yield symbol.get_name(), symbol.is_referenced(), is_set
    for child in table.get_children():
      yield from self._symbols(child)

  def line_that_replaces(self, name: str) -> int | None:
    """The line at the top of the script that gives a variable a value unconditionally; None for none.

    `if 'NAME' not in globals():` and similar do not count, nor does one that reads the value that it replaces, nor
    any after a line that has read it.
    """
    for statement in self._tree.body:
      nodes = list(ast.walk(statement))
      contexts = [type(node.ctx) for node in nodes if isinstance(node, ast.Name) and node.id == name]
      strings = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
      if ast.Load in contexts or (name in strings and name in self._strings):
        return None
      if isinstance(statement, (ast.Assign, ast.AnnAssign)) and ast.Store in contexts:
        return statement.lineno
    return None

  def line_that_calls(self, name: str, method: str) -> int | None:
    """The line at the top of the script that calls a method of a variable; None for none."""
    for statement in self._tree.body:
      if isinstance(statement, (ast.Expr, ast.Assign)) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if isinstance(called, ast.Attribute) and called.attr == method:
          if isinstance(called.value, ast.Name) and called.value.id == name:
            return statement.lineno
    return None

  def line_that_sets(self, name: str) -> int:
    """The last line that gives a variable a value; 1 if none is seen."""
    nodes = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return max((node.lineno for node in nodes if node.id == name), default=1)

  @property
  def leaves_tensorflow_alone(self) -> bool:
    """Whether the script imports other frameworks, and not TensorFlow."""
    imported = set()
    for node in ast.walk(self._tree):
      if isinstance(node, ast.Import):
        imported |= {alias.name.partition('.')[0] for alias in node.names}
      elif isinstance(node, ast.ImportFrom) and not node.level:
        imported.add(str(node.module).partition('.')[0])
    return bool(imported & _OTHER_FRAMEWORKS) and not imported & _TENSORFLOW
