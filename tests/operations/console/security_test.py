"""Attacks on the console, each by its name, on a real socket: whoever is not its user gets and changes nothing.

Requests are written by hand: a browser would not send most of them, and an attacker's program would.
"""

import http.client
import json
import os
import socket

import pytest

from official_ext.operations.console import security
from official_ext.operations.runs import run_folders
from official_ext.operations.runs import trash
from tests.operations.runs import folders

PASSWORD = 'correct-horse-battery-staple'
HTML = '<img src=x onerror=alert(1)>'


@pytest.fixture(scope='module')
def root(tmp_path_factory):
  """A folder of runs, with things around it that nobody may see."""
  place = tmp_path_factory.mktemp('attacked')
  outside = folders.make(place / 'outside', 'secret', [folders.event('train', 1, loss=0.123456)])
  (place / 'outside' / 'secret' / 'run.log').write_text('outside words\n')
  root = place / 'runs'
  folders.make(
    root, 'victim', [folders.event('train', 1, loss=1.0)], identity=folders.ended_process(), status='finished'
  )
  folders.make(root, HTML.replace('/', ''), [], identity=folders.ended_process())
  deleted = folders.make(root, 'deleted', [], identity=folders.ended_process(), status='finished')
  trash.delete(str(root), deleted)
  folders.make(root / '.queue', 'hidden', [])
  (root / 'link').symlink_to(outside.path)
  (root / 'up').symlink_to(place)
  linked = folders.make(root, 'linked', [], identity=folders.ended_process())
  (root / 'linked' / 'run.log').symlink_to('/etc/passwd')
  assert linked.exists()
  return root


@pytest.fixture(scope='module')
def console(root, start_console):
  """A console on a loopback address."""
  return start_console(root)


@pytest.fixture(scope='module')
def guarded(root, start_console):
  """A console on an address that others reach."""
  return start_console(root, host='0.0.0.0', password=PASSWORD)


@pytest.fixture
def victim(root):
  """A run that must not change."""
  run = run_folders.Run(str(root / 'victim'), 'victim')
  before = run_folders.read_notes(run)
  yield run
  assert run.exists()
  assert run_folders.read_notes(run) == before


def _send(console, method='GET', target='/api/runs', body=None, host=None, **headers):
  """The status and the content that a forged request gets; `origin_='...'` is the header Origin."""
  connection = http.client.HTTPConnection('127.0.0.1', console.context.port, timeout=10)
  try:
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    connection.putheader('Host', f'127.0.0.1:{console.context.port}' if host is None else host)
    for name, value in headers.items():
      for one in value if isinstance(value, list) else [value]:
        connection.putheader(name.strip('_').replace('_', '-'), one)
    if body is not None and 'Transfer_Encoding' not in headers:
      connection.putheader('Content-Length', str(len(body)))
    connection.endheaders(body.encode() if isinstance(body, str) else body)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read().decode()
  finally:
    connection.close()


def _attack(console, body=None, target='/api/runs/tag', method='POST', host=None, **headers):
  """A request that changes the victim, as our page would send it, except the given parts; None leaves a header out."""
  body = json.dumps({'runs': ['victim'], 'add': ['owned']}) if body is None else body
  ours = {'Content_Type': 'application/json', 'Origin': console.url, 'X_Console_Token': console.context.token}
  sent = {name: value for name, value in {**ours, **headers}.items() if value is not None}
  return _send(console, method, target, body, host, **sent)


def test_what_our_page_sends_is_allowed(console, root):
  """Otherwise everything below would be refused for another reason."""
  status, _, content = _attack(console, json.dumps({'runs': ['victim'], 'note': 'ours'}))
  assert (status, json.loads(content)['errors']) == (200, [])
  assert run_folders.read_notes(run_folders.Run(str(root / 'victim'), 'victim')).note == 'ours'


_HOSTS = {
  'a foreign name': 'evil.example:{port}',
  'a name that leads here (rebinding)': 'runs.evil.example:{port}',
  'our name with another port': '127.0.0.1:1',
  'our name without a port': '127.0.0.1',
  'our name before a foreign one': '127.0.0.1:{port}.evil.example',
  'our name as a user': '127.0.0.1:{port}@evil.example:{port}',
  'another address': '10.0.0.1:{port}',
  'the address of all': '0.0.0.0:{port}',
  'a final dot': 'localhost.:{port}',
  'nothing': '',
  'a bracket': '[::1:{port}',
  'an invalid number': '127.0.0.1:{port}x',
}


@pytest.mark.parametrize('host', _HOSTS.values(), ids=_HOSTS)
def test_a_request_for_another_host_is_refused(console, host):
  status, _, content = _send(console, host=host.format(port=console.context.port))
  assert status == 421
  assert 'victim' not in content


def test_a_second_host_is_refused(console):
  with socket.create_connection(('127.0.0.1', console.context.port), timeout=10) as connection:
    ours = f'127.0.0.1:{console.context.port}'
    connection.sendall(f'GET /api/runs HTTP/1.1\r\nHost: {ours}\r\nHost: evil.example\r\n\r\n'.encode())
    assert connection.recv(1000).startswith(b'HTTP/1.1 400')


_ORIGINS = {
  'a foreign site': 'https://evil.example',
  'another port of this machine': 'http://127.0.0.1:1',
  'our address with another scheme': 'https://127.0.0.1:{port}',
  'a frame without an origin': 'null',
  'our address as a prefix': 'http://127.0.0.1:{port}.evil.example',
  'our other name': 'http://localhost:{port}',
  'no origin': None,
}


@pytest.mark.parametrize('origin', _ORIGINS.values(), ids=_ORIGINS)
def test_a_change_from_another_site_is_refused(console, victim, origin):
  status, _, _ = _attack(console, Origin=origin and origin.format(port=console.context.port))
  assert status == 403


@pytest.mark.parametrize('site', ['cross-site', 'same-site'])
def test_a_read_by_a_script_of_another_site_is_refused(console, site):
  headers = {'Sec_Fetch_Site': site, 'Sec_Fetch_Mode': 'no-cors', 'Sec_Fetch_Dest': 'script'}
  for target in ('/api/runs', '/api/session', '/api/stream?topics=runs', '/static/app.js', '/runs'):
    assert _send(console, target=target, **headers)[0] == 403


def test_a_link_on_another_site_opens_a_page_and_nothing_else(console):
  headers = {'Sec_Fetch_Site': 'cross-site', 'Sec_Fetch_Mode': 'navigate', 'Sec_Fetch_Dest': 'document'}
  status, _, content = _send(console, target='/runs?filter=a', **headers)
  assert status == 200 and 'victim' not in content and console.context.token not in content
  assert _send(console, target='/api/session', **headers)[0] == 403
  assert _send(console, target='/runs', **{**headers, 'Sec_Fetch_Dest': 'iframe'})[0] == 403


def test_a_change_by_a_cross_site_request_with_our_origin_missing_in_the_browser_is_refused(console, victim):
  assert _attack(console, Sec_Fetch_Site='cross-site')[0] == 403
  assert _attack(console, Sec_Fetch_Site='none')[0] == 403


_TOKENS = {'no token': None, 'an empty one': '', 'a wrong one': 'A' * 43, 'two': ['A' * 43, 'B' * 43]}


@pytest.mark.parametrize('token', _TOKENS.values(), ids=_TOKENS)
def test_a_change_without_the_token_of_the_page_is_refused(console, victim, token):
  assert _attack(console, X_Console_Token=token)[0] in (400, 403)


def test_the_token_in_the_address_does_not_count(console, victim):
  token = console.context.token
  status, _, _ = _attack(console, target=f'/api/runs/tag?token={token}&x-console-token={token}', X_Console_Token=None)
  assert status == 403


_TYPES = {
  'a form': 'application/x-www-form-urlencoded',
  'a plain text': 'text/plain',
  'a form with files': 'multipart/form-data; boundary=x',
  'nothing': None,
  'JSON in a parameter': 'text/plain; application/json',
}


@pytest.mark.parametrize('kind', _TYPES.values(), ids=_TYPES)
def test_a_change_by_what_a_form_can_send_is_refused(console, victim, kind):
  assert _attack(console, Content_Type=kind)[0] == 415


@pytest.mark.parametrize('method', ['GET', 'HEAD', 'PUT', 'DELETE', 'PATCH', 'OPTIONS', 'TRACE', 'CONNECT'])
def test_nothing_but_post_changes_anything(console, victim, method):
  for target in ('/api/runs/tag?run=victim&add=owned', '/api/runs/delete?runs=victim', '/api/runs/archive?run=victim'):
    assert _attack(console, '', target, method)[0] in (404, 405)


def test_a_preflight_of_another_site_is_not_answered(console):
  headers = {'Origin': 'https://evil.example', 'Access_Control_Request_Method': 'POST'}
  status, answered, _ = _send(console, 'OPTIONS', '/api/runs/tag', **headers)
  assert status in (403, 405)
  assert not [name for name in answered if name.lower().startswith('access-control')]


_BODIES = {
  'no JSON': 'runs=victim',
  'a list': '["victim"]',
  'a number': '1',
  'nothing': '',
  'deep': '[' * 100_000,
  'no text': '\udcff\udcfe',
  'a text in place of a list': '{"runs": "victim", "add": ["owned"]}',
  'numbers in place of names': '{"runs": [1], "add": ["owned"]}',
}


@pytest.mark.parametrize('body', _BODIES.values(), ids=_BODIES)
def test_a_body_that_is_not_what_is_expected_is_refused(console, victim, body):
  assert _attack(console, body.encode('utf-8', 'surrogateescape'))[0] == 400


def test_a_body_that_would_fill_memory_is_refused_before_it_is_read(console):
  status, _, _ = _attack(console, '', Content_Length=str(security.MAX_BODY_BYTES + 1))
  assert status in (400, 413)


def test_a_body_without_a_length_is_counted(console):
  with socket.create_connection(('127.0.0.1', console.context.port), timeout=20) as connection:
    headers = {
      'Host': f'127.0.0.1:{console.context.port}',
      'Content-Type': 'application/json',
      'Origin': console.url,
      'X-Console-Token': console.context.token,
      'Transfer-Encoding': 'chunked',
    }
    text = ''.join(f'{name}: {value}\r\n' for name, value in headers.items())
    connection.sendall(f'POST /api/runs/tag HTTP/1.1\r\n{text}\r\n'.encode())
    chunk = b'100000\r\n' + b' ' * 0x100000 + b'\r\n'
    answer = b''
    try:
      for _ in range(security.MAX_BODY_BYTES // 0x100000 + 2):
        connection.sendall(chunk)
      answer = connection.recv(1000)
    except OSError:  # It was closed while we sent.
      answer = connection.recv(1000) if not answer else answer
    assert answer.startswith(b'HTTP/1.1 413')


def test_a_compressed_body_is_refused(console, victim):
  assert _attack(console, Content_Encoding='gzip')[0] == 415


_NAMES = {
  'the folder above': '../outside/secret',
  'the folder above, inside of a name': 'victim/../../outside/secret',
  'an absolute path': '{place}/outside/secret',
  'an absolute path to a run in the folder': '{root}/victim',
  'a link out of the folder': 'link',
  'a folder behind a link': 'up/outside/secret',
  'what is in the trash': '.trash/{key}/run',
  'what is in the queue': '.queue/hidden',
  'a name with NUL': 'victim\0',
  'an empty name': '',
  'slashes alone': '//',
  'a dot': './victim',
  'a doubled slash': 'victim//',
  'a file': 'victim/run.json',
  'the home': '~/victim',
  'dots, encoded twice': '%2e%2e%2foutside%2fsecret',
  'a backslash': '..\\outside\\secret',
  'a log that is a link': 'linked',
}


# Names of an entry in the folder, in which nothing is special.
_PLAIN = ('~/victim', '%2e%2e%2foutside%2fsecret')


@pytest.mark.parametrize('name', _NAMES.values(), ids=_NAMES)
def test_a_name_does_not_lead_out_of_the_folder(console, root, name):
  name = name.format(place=root.parent, root=root, key=os.listdir(root / '.trash')[0])
  for action in ('stop', 'resume', 'tag', 'archive', 'delete'):
    found = console.post(f'/api/runs/{action}', runs=[name], add=['owned'])
    assert not found['done'] and found['errors'], action
  if name in _PLAIN:  # It names no run, perhaps one that is gone: its page listens, and learns that.
    with console.stream(run=name, **{'from': 0}) as stream:
      found = stream.next()
  else:
    status, found = console.try_get('/api/stream', topics='runs', run=name)
    assert status == 400
  assert 'secret' not in str(found).replace(repr(name)[1:-1], '').replace(name, '')
  outside = run_folders.Run(str(root.parent / 'outside' / 'secret'), 'secret')
  assert outside.exists() and run_folders.read_notes(outside) == run_folders.Notes()


def test_links_out_of_the_folder_are_not_listed(console):
  names = [run['name'] for run in console.get('/api/runs')['runs']]
  assert 'victim' in names and 'link' not in names
  assert 'link' not in console.get('/api/runs/filter', sort='name')['names']


@pytest.mark.parametrize('key', ['../../outside', '..', '', 'x/../../..'])
def test_a_key_of_the_trash_leads_nowhere_else(console, root, key):
  for action in ('restore', 'delete_forever'):
    assert not console.post(f'/api/runs/{action}', keys=[key])['done']
  assert (root.parent / 'outside' / 'secret').exists()


def test_a_run_is_not_restored_to_a_place_outside(console, root):
  key = os.listdir(root / '.trash')[0]
  for name in ('../escaped', '/tmp/escaped', '.queue/escaped'):
    assert console.try_post('/api/runs/restore', keys=[key], name=name)[0] == 400
  assert os.listdir(root / '.trash') == [key]


_FILES = {
  'dots': '/static/../security.py',
  'dots, encoded': '/static/%2e%2e/security.py',
  'slashes, encoded': '/static/..%2fsecurity.py',
  'encoded twice': '/static/%252e%252e%252fsecurity.py',
  'an absolute path': '/static//etc/passwd',
  'backslashes': '/static/..\\security.py',
  'NUL': '/static/app.js%00.css',
  'a folder': '/static/',
  'a file of a run': '/runs/victim/run.json',
}


@pytest.mark.parametrize('target', _FILES.values(), ids=_FILES)
def test_no_address_leads_to_another_file(console, target):
  status, _, content = _send(console, target=target)
  assert status in (400, 404)
  assert 'import' not in content and 'root:' not in content


def test_every_answer_forbids_frames_sniffing_caching_and_inline_code(console):
  for target in ('/', '/runs', '/static/app.js', '/api/runs', '/api/none', '/api/runs/filter?filter=x'):
    _, headers, _ = _send(console, target=target)
    assert headers['X-Frame-Options'] == 'DENY', target
    assert headers['X-Content-Type-Options'] == 'nosniff'
    assert headers['Cache-Control'] == 'no-store'
    assert headers['Referrer-Policy'] == 'no-referrer'
    assert headers['Cross-Origin-Resource-Policy'] == headers['Cross-Origin-Opener-Policy'] == 'same-origin'
    policy = headers['Content-Security-Policy']
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
    assert 'unsafe' not in policy and '*' not in policy and 'http' not in policy
    assert 'Server' not in headers and 'Access-Control-Allow-Origin' not in headers
  _, headers, _ = _send(console, host='evil.example')
  assert headers['Content-Security-Policy'] and headers['X-Frame-Options'] == 'DENY'


def test_html_in_names_is_never_sent_as_html(console):
  for target in ('/api/runs', f'/api/runs/filter?filter={HTML.replace(" ", "%20")}', '/api/runs/fields?name=%3Cb%3E'):
    _, headers, _ = _send(console, target=target)
    assert headers['Content-Type'] == 'application/json'
  status, headers, content = _send(console, target='/%3Cimg%20src=x%20onerror=alert(1)%3E')
  assert status == 404 and headers['Content-Type'] == 'application/json' and '<img' not in content


def test_a_line_break_in_a_name_makes_no_header(console):
  status, headers, _ = _send(console, target='/api/runs/filter?filter=a%0d%0aSet-Cookie:%20owned=1')
  assert status == 400
  assert 'Set-Cookie' not in headers


def test_an_address_without_end_is_refused(console):
  assert _send(console, target=f'/api/runs/filter?filter={"a" * 40_000}')[0] == 414


# An address that others reach.


@pytest.mark.parametrize('target', ['/api/session', '/api/runs', '/api/stream?topics=runs', '/api/runs/trash'])
def test_without_the_password_nothing_is_shown(guarded, target):
  status, _, content = _send(guarded, target=target)
  assert status == 401
  assert 'victim' not in content and guarded.context.token not in content and PASSWORD not in content


_AUTHORIZATIONS = {
  'a wrong one': 'Bearer wrong-wrong-wrong-wrong',
  'nothing': 'Bearer ',
  'its beginning': f'Bearer {PASSWORD[:-1]}',
  'more than it': f'Bearer {PASSWORD}x',
  'another scheme': f'Basic {PASSWORD}',
  'no text': 'Bearer \xff',
}


@pytest.mark.parametrize('given', _AUTHORIZATIONS.values(), ids=_AUTHORIZATIONS)
def test_a_wrong_password_opens_nothing(guarded, given):
  assert _send(guarded, Authorization=given)[0] == 401


def test_the_password_in_the_address_opens_nothing(guarded):
  assert _send(guarded, target=f'/api/runs?token={PASSWORD}&access_token={PASSWORD}')[0] == 401


def test_the_right_password_opens_it_for_a_script(guarded):
  assert _send(guarded, Authorization=f'Bearer {PASSWORD}')[0] == 200
  body = json.dumps({'runs': ['none']})
  headers = {'Content_Type': 'application/json', 'Authorization': f'Bearer {PASSWORD}'}
  assert _send(guarded, 'POST', '/api/runs/tag', body, **headers)[0] == 200
  assert _send(guarded, 'POST', '/api/runs/tag', body, **{**headers, 'Content_Type': 'text/plain'})[0] == 415
  assert _send(guarded, 'POST', '/api/runs/tag', body, **{**headers, 'Origin': 'https://evil.example'})[0] == 403


def test_the_login_gives_a_cookie_that_no_script_reads_and_no_site_sends(guarded):
  headers = {'Content_Type': 'application/json', 'Origin': guarded.url}
  status, answered, _ = _send(guarded, 'POST', '/api/login', json.dumps({'token': PASSWORD}), **headers)
  cookie = answered['Set-Cookie']
  assert status == 200 and 'HttpOnly' in cookie and 'samesite=strict' in cookie.lower()
  assert PASSWORD not in cookie
  assert _send(guarded, Cookie=cookie.partition(';')[0])[0] == 200
  # The cookie alone changes nothing: the token of the page is requested as well.
  body = json.dumps({'runs': ['victim'], 'add': ['owned']})
  assert _send(guarded, 'POST', '/api/runs/tag', body, Cookie=cookie.partition(';')[0], **headers)[0] == 403


def test_a_wrong_login_gives_none(guarded):
  for token in ('wrong', '', PASSWORD.upper()):
    headers = {'Content_Type': 'application/json', 'Origin': guarded.url}
    status, answered, _ = _send(guarded, 'POST', '/api/login', json.dumps({'token': token}), **headers)
    assert status == 401 and 'Set-Cookie' not in answered
  headers = {'Content_Type': 'application/json', 'Origin': 'https://evil.example'}
  assert _send(guarded, 'POST', '/api/login', json.dumps({'token': PASSWORD}), **headers)[0] == 403


_COOKIES = {'the password': PASSWORD, 'an empty one': '', 'another': '0' * 64, 'of another password': None}


@pytest.mark.parametrize('value', _COOKIES.values(), ids=_COOKIES)
def test_a_forged_cookie_opens_nothing(guarded, value):
  port = guarded.context.port
  value = security.cookie_of('another-password-of-ours', port)[1] if value is None else value
  assert _send(guarded, Cookie=f'official_ext_console_{port}={value}')[0] == 401


def test_a_name_that_leads_to_an_open_address_is_refused_but_its_own_are_not(guarded):
  port = guarded.context.port
  assert _send(guarded, host=f'evil.example:{port}', Authorization=f'Bearer {PASSWORD}')[0] == 421
  assert _send(guarded, host=f'10.1.2.3:{port}', Authorization=f'Bearer {PASSWORD}')[0] == 200
  assert _send(guarded, host=f'{socket.gethostname()}:{port}', Authorization=f'Bearer {PASSWORD}')[0] == 200
  assert _send(guarded, host=f'10.1.2.3:{port + 1}', Authorization=f'Bearer {PASSWORD}')[0] == 421


def test_the_password_is_in_no_file_that_a_browser_gets(guarded):
  for target in ('/', '/static/app.js', '/static/api.js', '/api/about'):
    content = _send(guarded, target=target)[2]
    assert PASSWORD not in content and guarded.context.token not in content
  assert PASSWORD not in repr(guarded.context) and guarded.context.token not in repr(guarded.context)
