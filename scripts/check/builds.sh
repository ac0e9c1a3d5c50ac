# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The builds of ./check, and meson's tests in them.

built=() # the builds that succeeded
fixed=() # the command under which the thread sanitizer's programs run
can_fix=yes

# Run a build, and print its verdict.
build_verdict() # STEP DIRECTORY MESON-OPTION...
{
	local name=$1 directory=$2 log="$logs/${1/ /-}.log" verdict=failed under=() targets=()

	shift 2
	case $name in
	*fuzz)
		local -x CC=clang
		targets=(fuzzers)
		;;
	*thread) under=("${fixed[@]}") ;;
	esac
	if { configure "$directory" "$@" &&
		run_limited 900 "${under[@]}" ninja -C "$directory" -k 0 "${targets[@]}"; } \
		>"$log" 2>&1; then
		verdict=passed
	fi
	printf '%s\t%s\t%s\n' $verdict "$name" "$log"
}

# A build that fails counts as one failure. The steps that need it are skipped by name.
build() # NAME
{
	! step_run "build $1" || built+=("$1")
}

is_good() # BUILD
{
	[[ " ${built[*]} " = *" $1 "* ]]
}

# Skip a step whose build failed.
is_built() # BUILD STEP
{
	is_good "$1" || step_skip "$2" "the build '$1' failed"
}

meson_tests() # NAME BUILD DIRECTORY MESON-TEST-OPTION...
{
	local name=$1 build=$2 directory=$3 log="$logs/tests-$1.log" json under=() more=2

	shift 3
	is_built "$build" "tests $name" || return
	step_begin "tests $name"
	rm -f "$directory"/meson-logs/testlog*
	# More at a time than there are CPUs, because most tests wait. With the thread sanitizer
	# they compute.
	[ "$build" != thread ] || under=("${fixed[@]}") more=1
	# Each test has its own time limit; this one is for meson itself.
	run_limited "${TESTS_LIMIT:-1800}" "${under[@]}" meson test -C "$directory" --no-rebuild \
		--num-processes $(($(nproc) + more)) "$@" >"$log" 2>&1
	# The name of the log contains the name of the setup, if there is one.
	json=$(find "$directory/meson-logs" -name 'testlog*.json' -size +0)
	if [ -n "$json" ]; then
		step_end < <("$top/scripts/tally" meson "$json" "$name" "$logs")
	else
		step_end <<<"failed"$'\t'"tests $name"$'\t'"$log"
	fi
}

# The plain suite without the tests of tests/long.txt.
check_short_tests()
{
	local names

	meson_tests plain plain "$build" --no-suite long
	names=$(meson test -C "$build" --no-rebuild --list --suite long 2>/dev/null |
		sed 's/.* //' | sort | paste -sd ' ')
	leave_out "the tests of tests/long.txt ($names)"
}

check_address()
{
	build address
	meson_tests address address "$build/address" --timeout-multiplier 3
}

# Find a command that turns the randomness of addresses off. The thread sanitizer needs that where
# vm.mmap_rnd_bits is high, for the build's own steps as well.
find_fixed()
{
	if setarch -R true 2>/dev/null; then
		fixed=(setarch -R)
	elif [ "$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0)" -gt 28 ]; then
		can_fix=no
	fi
}

check_thread()
{
	if [ $can_fix = no ]; then
		step_skip thread "setarch -R is not permitted here, and vm.mmap_rnd_bits is over 28"
		return
	fi
	build thread
	meson_tests thread thread "$build/thread" --timeout-multiplier 3
}

# What the smoke for aarch64 runs: unit tests of what knows the processor or the page size, and
# transfers between processes. It builds these, the library and the command.
aarch64_unit=(core-region memory-allocate memory-region-table transport-copier transport-shm
	util-crc32c util-hash util-loop wire-extents wire-frame wire-record)
aarch64_integration=(api-transfers command-file command-notification memory-model rdma-faults
	shm-memory transfer-estimate)
aarch64_targets=() # of ninja; none: all

# Have `build aarch64` build no more than the smoke needs.
aarch64_smoke()
{
	aarch64_targets=(tools/wherry tests/fake/libcuda.so.1 tests/fake/nvml/libnvidia-ml.so.1
		tests/fake/verbs/libibverbs.so.1 "${aarch64_unit[@]/#/tests/unit/}"
		"${aarch64_integration[@]/#/tests/integration/}")
}

# aarch64 under qemu-user, which is about ten times slower.
aarch64_tests() # NAME MESON-TEST-OPTION...
{
	meson_tests "$1" aarch64 "$build/aarch64/build" --timeout-multiplier 10 "${@:2}"
}

check_aarch64()
{
	build aarch64
	aarch64_tests aarch64 "${aarch64_unit[@]}" "${aarch64_integration[@]}"
}

check_valgrind()
{
	meson_tests valgrind plain "$build" --setup valgrind --suite unit
}

check_install()
{
	is_built plain install && step_command install 120 "$top/scripts/install-test" "$build"
}

# Python's wheel for this kind of processor, in the system's Python.
check_wheel()
{
	if [ "$(uname -m)" != x86_64 ]; then
		step_skip wheel "scripts/wheel builds on x86-64 machines"
		return
	fi
	step_run wheel || return
	step_command wheel-test 300 "$top/scripts/wheel-test" \
		"$(tail -n 1 "$logs/wheel.log")"
}

check_fuzz() # SECONDS-A-TARGET
{
	local targets

	build fuzz
	is_built fuzz fuzz || return
	targets=$(find "$top/tests/fuzz/corpus" -mindepth 1 -maxdepth 1 -type d | wc -l)
	step_command fuzz $((600 + targets * ($1 + 2))) "$top/scripts/fuzz" \
		--all "$build/fuzz/tests/fuzz" "$1"
}
