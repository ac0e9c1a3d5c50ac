# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./check --release: what is too long for continuous integration. It keeps docs/release-results.md.
#
# A step is a function release_NAME; release_steps lists the names. A new step is one more of each.

release_steps=(tests address thread analyzer valgrind mooncake nixl vllm tarball deb container
	python aarch64 debug hosts driver races weights machine repeat fuzz sim mutants)
results=$top/docs/release-results.md

# Mooncake's transfer engine, the last release of each minor version that tests/integration knows
# how to call.
mooncake_versions=(0.3.9 0.3.10.post2 0.3.11.post1 0.3.12.post1 0.3.13.post1)

check_release()
{
	local name

	for name in "${chosen_steps[@]}"; do
		[[ " ${release_steps[*]} " = *" $name "* ]] ||
			die 64 "--release has no step '$name', but ${release_steps[*]}"
	done
	[ ${#chosen_steps[@]} -gt 0 ] || chosen_steps=("${release_steps[@]}")
	build plain
	is_built plain release || return
	find_lab
	on_step=release_record
	for name in "${chosen_steps[@]}"; do
		"release_$name"
	done
}

# What the other levels leave to this one.
leave_out_release()
{
	leave_out release "the tests that tests/long.txt leaves to it ($(suite_names release))"
	leave_out release "every test under the sanitizers"
	leave_out release "long worlds of the simulation, and its mutants"
	leave_out release "clang's analyzer to its own limit"
	leave_out release "valgrind"
	leave_out release "random fuzzing"
	leave_out release "kernels with checkers, RDMA between machines"
	leave_out release "Mooncake's and NIXL's versions, vLLM"
	leave_out release "Python's packages, the tarball, the Debian packages, the container"
	leave_out release "aarch64 under qemu-user"
}

# Replace the row of a step in docs/release-results.md, or add one. A failure is recorded as well.
release_record() # STEP RESULT TIME
{
	local row with

	with="gcc $(gcc -dumpfullversion), Linux $(uname -r), $(nproc) CPUs"
	row="| $1 | $2 | $3 | $(date -u +%F) | $(release_revision) | $with |"
	awk -v row="$row" -v start="| $1 |" '
		index($0, start) == 1 { print row; done = 1; next }
		{ print }
		END { if (!done) print row }' "$results" >"$results.new" &&
		mv "$results.new" "$results"
}

# The page itself, which earlier steps wrote, is no difference.
release_revision()
{
	tree_revision "${results#"$top"/}"
}

# The tests that tests/long.txt leaves to this level.
release_tests()
{
	meson_tests release plain "$build" --suite release
}

# Every test under the address and undefined-behaviour sanitizers.
release_address()
{
	every_sanitized
	TESTS_LIMIT=7200 check_address
}

# Every test under the thread sanitizer.
release_thread()
{
	every_sanitized
	TESTS_LIMIT=7200 check_thread
}

# clang's analyzer, to its own limit.
release_analyzer()
{
	step_command analyzer 7200 "$top/scripts/tidy" --deep "$build"
}

# The unit tests under valgrind.
release_valgrind()
{
	meson_tests valgrind plain "$build" --setup valgrind --suite unit
}

# Copies from and to Mooncake's own engine, each version.
release_mooncake()
{
	local version

	for version in "${mooncake_versions[@]}"; do
		step_command "mooncake-$version" 1200 env TEST_MOONCAKE="$version" \
			"$top/tests/integration/command/mooncake-real.sh" "$build/tools/wherry"
	done
}

# The plug-in in agents of NIXL, each version that PyPI has, for each CUDA.
release_nixl()
{
	local cuda version versions

	for cuda in cu12 cu13; do
		if ! versions=$("$top/scripts/nixl" --versions $cuda 2>&1); then
			step_skip "nixl-$cuda" "$versions"
			continue
		fi
		for version in $versions; do
			step_command "nixl-$cuda-$version" 600 env TESTS_PROGRAMS=100 \
				"$top/tests/nixl/run" "$build/compat/libplugin_WHERRY.so" \
				"$version" $cuda
		done
	done
}

# The plug-in under vLLM's own connector. The first time it downloads 5 GB.
release_vllm()
{
	step_command vllm 3600 "$top/tests/nixl/server/run" "$build/compat/libplugin_WHERRY.so"
}

# The tarball, its bill of materials, and what it builds.
release_tarball()
{
	step_command tarball 1200 "$top/scripts/tarball-test" --build
}

release_packaged() # STEP SECONDS COMMAND
{
	if ! (install_packages package) >"$logs/$1.log" 2>&1; then
		step_skip "$1" "$(tail -n 1 "$logs/$1.log")"
		return
	fi
	step_command "$@"
}

# The Debian packages, in a clean root.
release_deb()
{
	release_packaged deb 3600 "$top/scripts/deb-test"
}

# The Containerfile, its steps in clean roots.
release_container()
{
	release_packaged container 3600 "$top/scripts/container-test"
}

# The kernel module under a kernel with KASAN, lockdep and others. Builds that the first time.
release_debug()
{
	if ! (install_packages debug) >"$logs/lab-debug.log" 2>&1; then
		step_skip lab-debug "$(tail -n 1 "$logs/lab-debug.log")"
		return
	fi
	release_lab lab-debug 15 debug
}

release_lab() # STEP SECONDS-EACH WHAT
{
	if [ -n "$lacks_lab" ]; then
		step_skip "$1" "$lacks_lab"
		return
	fi
	step_command "$1" $((3600 + 8 * $2)) env SECONDS_EACH="$2" "$top/tests/lab/check" "$3" \
		"$build"
}

# RDMA between two virtual machines.
release_hosts()
{
	release_lab lab-hosts 0 hosts
}

# The kernel module, with ten minutes of stress and ten of fuzzing, in both ways of pinning.
release_driver()
{
	release_lab lab-driver 600 driver
}

# The kernel module under KCSAN. Builds its kernel the first time.
release_races()
{
	release_lab lab-races 600 races
}

# Random pairs of layouts, run by engines of one process and by processes; in some of them one is
# killed.
release_weights()
{
	step_command weights 7200 env TESTS_PAIRS=5000 TESTS_FAULTS=500 \
		"$build/tests/integration/weights-random"
}

# Every test on a machine that seems to have 64 CPUs and a cache of 300 MiB.
release_machine()
{
	meson_tests machine plain "$build" --setup machine --no-suite sim
}

# Every test ten times.
release_repeat()
{
	TESTS_LIMIT=21600 meson_tests repeat plain "$build" --repeat 10
}

# Ten minutes a target.
release_fuzz()
{
	local targets

	build fuzz
	is_built fuzz fuzz || return
	targets=$(find "$top/tests/fuzz/corpus" -mindepth 1 -maxdepth 1 -type d | wc -l)
	step_command fuzz $((600 + targets * 602)) "$top/scripts/fuzz" --all \
		"$build/fuzz/tests/fuzz" 600
}

# The library, the command and their tests for aarch64 under qemu-user: on pages of 4 KiB, and on
# pages of 64 KiB, which kernels for Grace have. With those, qemu-user leaves the heap out of
# /proc/self/maps, so that the integration tests find "no memory" there.
release_aarch64()
{
	local suites=(--suite unit --suite fuzz --suite fake)

	build aarch64
	TESTS_LIMIT=14400 aarch64_tests aarch64 "${suites[@]}" --suite integration
	QEMU_PAGESIZE=65536 TESTS_LIMIT=14400 aarch64_tests aarch64-64k "${suites[@]}"
}

# Python's wheel for x86-64, its source package, and the wheel of aarch64 under qemu-user.
release_python()
{
	if [ "$(uname -m)" = x86_64 ]; then
		step_command wheel 600 "$top/scripts/wheel"
		step_command wheel-test 300 "$top/scripts/wheel-test" \
			"$(tail -n 1 "$logs/wheel.log")"
	else
		step_skip wheel "scripts/wheel builds on x86-64 machines"
	fi
	step_command sdist 600 "$top/scripts/sdist-test"
	step_command wheel-aarch64 900 "$top/scripts/wheel" aarch64
	step_command wheel-test-aarch64 900 "$top/scripts/wheel-test" \
		"$(tail -n 1 "$logs/wheel-aarch64.log")"
}

# 20,000 long worlds.
release_sim()
{
	step_command sim-long 36000 "$build/tests/sim/sim" --seeds 1 20000 --long
}

# Mended faults that are put back, one at a time: the simulation finds each.
release_mutants()
{
	step_command mutants 36000 "$top/tests/sim/mutants/run"
}
