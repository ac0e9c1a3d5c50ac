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
		build_targets "$name" "$directory" &&
		run_limited 900 "${under[@]}" ninja -C "$directory" -k 0 "${targets[@]}"; } \
		>"$log" 2>&1; then
		verdict=passed
	fi
	printf '%s\t%s\t%s\n' $verdict "$name" "$log"
}

# The suites that ./check --all runs under a sanitizer; empty: all tests (every_sanitized).
suites_address=(unit fuzz fake hostile sanitized sim)
suites_thread=(unit sanitized)

every_sanitized()
{
	suites_address=()
	suites_thread=()
}

# What ninja makes, into targets of the caller; none: all.
build_targets() # STEP DIRECTORY
{
	local made suites=()

	case $1 in
	*address) suites=("${suites_address[@]}") ;;
	*thread) suites=("${suites_thread[@]}") ;;
	esac
	[ ${#suites[@]} -gt 0 ] || return 0
	made=$("$top/scripts/test-targets" "$2" "${suites[@]}") && mapfile -t targets <<<"$made"
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

# If more tests fail than that, the machine is not to blame.
most_again=8

# Run the tests of a suite once more that failed without proof of a fault (scripts/tally), alone:
# one after the other, when all others have ended. `again`, of the caller, becomes their testlog.
run_again() # DIRECTORY TESTLOG MESON-TEST-OPTION...
{
	local directory=$1 testlog=$2 options=() names

	shift 2
	mapfile -t names < <("$top/scripts/tally" again "$testlog")
	[ ${#names[@]} -gt 0 ] && [ ${#names[@]} -le $most_again ] || return
	while [ $# -gt 0 ]; do
		case $1 in
		--repeat) return ;; # that is there to find who is flaky
		--setup | --timeout-multiplier)
			options+=("$1" "$2")
			shift
			;;
		esac
		shift
	done
	lanes_rest
	rm -f "$directory"/meson-logs/again*
	run_limited "${TESTS_LIMIT:-1800}" "${under[@]}" meson test -C "$directory" --no-rebuild \
		--logbase again --num-processes 1 "${options[@]}" "${names[@]}" >>"$log" 2>&1
	again=$(find "$directory/meson-logs" -name 'again*.json' -size +0)
}

meson_tests() # NAME BUILD DIRECTORY MESON-TEST-OPTION...
{
	local name=$1 build=$2 directory=$3 log="$logs/tests-$1.log" json again='' under=() more=2

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
		run_again "$directory" "$json" "$@"
		step_end < <("$top/scripts/tally" meson "$json" "$name" "$logs" ${again:+"$again"})
	else
		step_end <<<"failed"$'\t'"tests $name"$'\t'"$log"
	fi
}

# The names of the tests of a suite, or of its part that meson's options select.
suite_names() # SUITE MESON-TEST-OPTION...
{
	meson test -C "$build" --no-rebuild --list --suite "$@" 2>/dev/null | sed 's/.* //' | sort |
		paste -sd ' '
}

# The plain suite without the tests of tests/long.txt.
check_short_tests()
{
	meson_tests plain plain "$build" --no-suite long
	leave_out all "long tests ($(suite_names long --no-suite release))"
}

check_address()
{
	build address
	meson_tests address address "$build/address" --timeout-multiplier 3 --no-suite release \
		"${suites_address[@]/#/--suite=}"
}

# Fresh seeds in the simulation for so long. The committed tree chooses the first one: a changed
# tree has seeds of its own, and what one run finds the next one of the same tree finds, too.
# One world at a time: this step runs beside tests.
sim_verdicts() # STEP SECONDS
{
	local directory=$build first

	[ "$1" = "sim plain" ] || directory=$build/${1#sim }
	first=$(git -C "$top" rev-parse "HEAD^{tree}" 2>/dev/null || date)
	first=$(echo "$1 $first" | cksum)
	command_verdicts "$1" $(($2 + 120)) "$directory/tests/sim/sim" --for "$2" --jobs 1 \
		--from "${first%% *}"
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
	meson_tests thread thread "$build/thread" --timeout-multiplier 3 --no-suite release \
		"${suites_thread[@]/#/--suite=}"
}

# aarch64 under qemu-user, which is about ten times slower.
aarch64_tests() # NAME MESON-TEST-OPTION...
{
	meson_tests "$1" aarch64 "$build/aarch64/build" --timeout-multiplier 10 "${@:2}"
}

check_install()
{
	is_built plain install && step_command install 120 "$top/scripts/install-test" "$build"
}
