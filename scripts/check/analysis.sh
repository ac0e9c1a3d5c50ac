# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# The static analysis of ./check: over every file, or over those that a change touches.

changed_sources=()
changed_scripts=()
# Over that ./check takes too long: clang-tidy needs up to a second of a processor for a file.
most_changed=60

# The commit that the change is compared with: where it left the main branch, or the last commit but
# one on the main branch itself.
changed_base()
{
	local branch base

	for branch in origin/HEAD origin/main main; do
		base=$(git -C "$top" merge-base HEAD "$branch" 2>/dev/null) || continue
		if [ "$base" = "$(git -C "$top" rev-parse HEAD)" ] &&
			git -C "$top" diff --quiet HEAD; then
			base=$(git -C "$top" rev-parse --verify --quiet HEAD^) || continue
		fi
		echo "$base"
		return
	done
	return 1
}

# The files that differ from that commit, and untracked files. False: git is missing.
changed_files() # PATTERN...
{
	local base

	base=$(changed_base) || return
	{
		git -C "$top" diff --name-only --diff-filter=d "$base" -- "$@"
		git -C "$top" ls-files --others --exclude-standard -- "$@"
	} | sort -u
}

# All shell scripts, as paths from the root of the tree. Shellcheck reads sourced files with the
# scripts that source them.
shell_scripts()
{
	(
		cd "$top" && grep -r -l -s -m 1 -E '^#!/(usr/)?bin/(env )?(ba)?sh' check run .ci \
			scripts bench \
			kernels tests | grep -v '/corpus/' | sort
	)
}

# Find what changed, and name the analysis that is left out: into changed_sources and
# changed_scripts.
find_changed()
{
	if ! changed_files >/dev/null; then
		leave_out all "clang-tidy, cppcheck and shellcheck (no git repository: nobody knows what changed)"
		return
	fi
	mapfile -t changed_sources < <(changed_files '*.c')
	mapfile -t changed_scripts < <(comm -12 <(changed_files | sed 's|^scripts/check/.*|check|' |
		sort -u) <(shell_scripts))
	if [ ${#changed_sources[@]} -gt $most_changed ]; then
		leave_out all \
			"clang-tidy and cppcheck (${#changed_sources[@]} changed files are more than $most_changed)"
		changed_sources=()
	else
		leave_out all "clang-tidy, cppcheck and shellcheck over files that did not change"
	fi
}

check_analysis() # STEP...
{
	local name

	for name in "$@"; do
		case $name in
		shellcheck* | format) step_run "$name" ;;
		*) is_built plain "$name" && step_run "$name" ;;
		esac
	done
}
