#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wherry registry, serve and exporter under systemd: what they tell it and when, and the units.
set -u
# shellcheck source=tests/cases.sh
. "$(dirname "$0")/../../cases.sh" || exit
command=$TEST_COMMAND
unset "${!WHERRY_@}"
export WHERRY_CUDA=/nowhere.so

# Start a command as systemd does, with a socket whose name is a path or has none in the file
# system, and end it by SIGTERM.
told() # KIND COMMAND...
{
	python3 - "$@" <<'PYTHON'
import os, signal, socket, subprocess, sys, tempfile, urllib.parse

kind, *command = sys.argv[1:]
with tempfile.TemporaryDirectory() as folder, \
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
    name = folder + "/notify" if kind == "path" else f"\0wherry-test-{os.getpid()}"
    systemd.bind(name)
    systemd.settimeout(60)
    environment = {**os.environ, "NOTIFY_SOCKET": name.replace("\0", "@")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            state = systemd.recv(4096).decode().split("\n")
            print(state)
            assert state[0] == "READY=1", state
            # It answers at the address that it names.
            url = state[1].removeprefix("STATUS=Serving at ")
            place = urllib.parse.urlsplit(url)
            socket.create_connection((place.hostname, place.port), 10).close()
            assert process.stdout.readline() == url + "\n"
            process.send_signal(signal.SIGTERM)
            assert systemd.recv(4096) == b"STOPPING=1"
            assert process.wait(60) == 0
        finally:
            process.kill()
PYTHON
}

for kind in path abstract; do
	told $kind "$command" registry --listen 127.0.0.1:0
	verdict "registry, $kind" $?
	told $kind "$command" exporter --metrics 127.0.0.1:0
	verdict "exporter, $kind" $?
	told $kind "$command" serve --listen 127.0.0.1:0 --memory host:4KiB
	verdict "serve, $kind" $?
done

# systemd would wait for a word that does not come.
timeout 200 env NOTIFY_SOCKET="$directory/nobody" "$command" registry --listen 127.0.0.1:0 \
	>"$directory/out" 2>&1
status=$?
cat "$directory/out"
[ $status != 0 ] && [ $status != 124 ] && grep -q "cannot tell systemd" "$directory/out"
verdict "nobody listens where systemd should" $?

if ! command -v systemd-analyze >/dev/null; then
	echo "no systemd-analyze here"
	echo "[  SKIPPED ] units"
	exit $failed
fi
for unit in "$TEST_BUILD"/packaging/systemd/*.service; do
	name=${unit##*/}
	# The command that it will be, where it lies now; and no man page is installed.
	sed -e "s|^ExecStart=[^ ]*|ExecStart=$command|" -e '/^Documentation=/d' "$unit" \
		>"$directory/$name"
	systemd-analyze verify "$directory/$name" >"$directory/out" 2>&1
	status=$?
	cat "$directory/out"
	[ $status = 0 ] && [ ! -s "$directory/out" ]
	verdict "systemd-analyze verify $name" $?
done
exit $failed
