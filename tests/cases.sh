# SPDX-License-Identifier: Apache-2.0
# For tests that are scripts, which source this: their cases, as scripts/tally counts them, and a
# directory of their own, which goes in the end, and with it what still runs in the background.
# shellcheck shell=bash disable=SC2034
directory=$(mktemp -d) || exit 1
failed=0
# No peer is lost because the machine is busy. Tests of lost peers set a time of their own.
export WHERRY_TIMEOUT=60s

# What runs in the background gets the signal, and is waited for; so do its children, as a KILL of
# `timeout` alone would leave the command that it runs.
end_all() # SIGNAL
{
	local job children

	for job in $(jobs -p); do
		children=$(cat "/proc/$job/task/$job/children" 2>/dev/null)
		# shellcheck disable=SC2086 # process ids
		[ -z "$children" ] || kill "-$1" $children 2>/dev/null
		kill "-$1" "$job" 2>/dev/null
		kill -CONT "$job" 2>/dev/null
		wait "$job" 2>/dev/null
	done
}

# shellcheck disable=SC2317 # called by the trap
clean_up()
{
	end_all KILL
	rm -rf "$directory"
}
trap clean_up EXIT

# Seconds of a clock that stands while anything on this machine waits for a processor, where the
# kernel counts that:
# for what must not take long, which beside load takes as long as the load likes.
quiet_seconds()
{
	local up waited=0

	read -r up _ </proc/uptime
	[ ! -r /proc/pressure/cpu ] || waited=$(sed -n 's/^some .*total=//p' /proc/pressure/cpu)
	echo $((${up%.*} - waited / 1000000))
}

# A port for the Nth server that this script is going to start (0 to 15). None of those that the
# kernel gives to others meanwhile, or Mooncake's engines take (15000 to 17000), and no other
# script's that runs now.
free_port() # N
{
	python3 - $(($$ * 16 + $1)) <<'PYTHON'
import socket, sys
for i in range(0, 12000, 16):
    with socket.socket() as s:
        try:
            s.bind(("0.0.0.0", 18000 + (int(sys.argv[1]) + i) % 12000))
        except OSError:
            continue
        print(s.getsockname()[1])
        break
PYTHON
}

# Run a command with libraries preloaded into the programs of this build. An emulator and the shell
# that starts it could not load them.
preloaded() # LIBRARIES COMMAND...
{
	local -x "${TEST_PRELOAD_BY:-LD_PRELOAD}=$1"

	shift
	"$@"
}

# Does the kernel do what madvise() asks for? Windows are kept from children by it. qemu-user
# accepts every advice and does nothing.
heeds_madvise()
{
	printf '%s\n' '#include <sys/mman.h>' 'static char pages[1 << 17];' \
		'int main(void)' \
		'{ return madvise((void *)(((unsigned long)pages + 65535) & -65536UL), 1, 9999); }' \
		>"$directory/madvise.c"
	# shellcheck disable=SC2086 # a compiler and its options, and what starts its programs
	${TEST_CC:-cc} -D_GNU_SOURCE -o "$directory/madvise" "$directory/madvise.c" &&
		! ${TEST_START-} "$directory/madvise"
}

verdict() # NAME STATUS
{
	if [ "$2" = 0 ]; then
		echo "[       OK ] $1"
	else
		echo "[  FAILED  ] $1"
		# What a program said to a file that goes with the directory; no second run takes
		# that back.
		grep -r -h -a -s -A 30 -e '[a-z]Sanitizer' -e ': runtime error: ' \
			-e 'SHA-256 .* differs' "$directory"
		failed=1
	fi
}

# What a library can write to, of the names in its symbol table: without what the compiler's own
# start file has.
writable() # LIBRARY
{
	objdump -t "$1" | awk 'NF > 2 && $(NF - 2) ~ /^\.(data|bss)$/ { print $NF }' |
		grep -v -E '^(\.data|\.bss|__dso_handle|__TMC_END__|completed\.[0-9]+)$' | sort
}
