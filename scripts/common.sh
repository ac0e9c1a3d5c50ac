# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What ./run and ./check share; sourced by them.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) # the root of the source tree
build=$top/build
logs=$build/logs
mkdir -p "$logs" || exit
export LC_ALL=C.UTF-8 # one order of files, one decimal point
# The caller's settings must not decide how a test ends.
unset "${!WHERRY_@}"

say() # TEXT...
{
	printf '== %s\n' "$*"
}

die() # STATUS TEXT...
{
	local status=$1

	shift
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit "$status"
}

# The moment now, in ms.
now()
{
	printf '%s\n' "$((${EPOCHREALTIME/[.,]/} / 1000))"
}

# "12.3 s" since a moment that now() gave.
since() # MOMENT
{
	local ms=$(($(now) - $1))

	printf '%d.%d s\n' $((ms / 1000)) $((ms % 1000 / 100))
}

# The packages of some groups of scripts/packages.
packages() # GROUP...
{
	local group package

	while read -r group package; do
		case " $* " in
		*" $group "*) printf '%s\n' "$package" ;;
		esac
	done < <(grep -v '^#' "$top/scripts/packages")
}

# Install what is missing of some groups; with everything there no network is needed. Not root: with
# sudo, or else print the command and exit 69.
install_packages() # GROUP...
{
	local package missing=() root=()

	if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
		say "this is not Debian: make sure that these or their likes are here:" \
			"$(packages "$@" | tr '\n' ' ')"
		return
	fi
	while read -r package; do
		# shellcheck disable=SC2016 # dpkg's variable
		if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" \
			2>/dev/null)" != installed ]; then
			missing+=("$package")
		fi
	done < <(packages "$@")
	[ ${#missing[@]} -gt 0 ] || return 0

	if [ "$(id -u)" != 0 ]; then
		# A sudo that asks for a password needs a terminal to ask on.
		if command -v sudo >/dev/null && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
			root=(sudo)
		else
			{
				echo "These packages are missing; as root, run"
				echo "  apt-get update &&" \
					"apt-get install --yes --no-install-recommends ${missing[*]}"
				echo "and then $0 again."
			} >&2
			exit 69
		fi
	fi
	say "installing ${missing[*]}"
	# Without its lists apt finds nothing; with old ones it may still do.
	if ! { "${root[@]}" apt-get update
		"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install --yes \
			--no-install-recommends "${missing[@]}"; } >"$logs/apt.log" 2>&1; then
		tail -n 5 "$logs/apt.log" >&2
		die 69 "cannot install ${missing[*]}; the log is $logs/apt.log"
	fi
}

# Is it a good build directory, and of this tree? It is not if a setup failed halfway or the tree
# was moved.
is_configured() # DIRECTORY
{
	[ -f "$1/build.ninja" ] &&
		grep -q -F "\"source\": \"$top\"" "$1/meson-info/meson-info.json"
}

# Make or update a build directory; options that differ from the last time are taken over.
configure() # DIRECTORY OPTION...
{
	local directory=$1

	shift
	if is_configured "$directory"; then
		meson configure "$directory" "$@" && meson setup --reconfigure "$directory" "$top"
	else
		# Not meson setup --wipe: it would take the logs with it.
		rm -rf "$directory"/{meson-private,meson-info,build.ninja,.ninja_deps,.ninja_log}
		meson setup "$directory" "$top" "$@"
	fi
}

# ---- the sources -------------------------------------------------------------------------------

tree_version()
{
	sed -n "s/^\tversion: '\(.*\)',/\1/p" "$top/meson.build"
}

# The commit, with a "+" if the tree differs from it, but for the files named; an unpacked tarball
# has a version only.
tree_revision() # FILE...
{
	local commit

	if [ ! -e "$top/.git" ] ||
		! commit=$(git -C "$top" rev-parse --short=10 HEAD 2>/dev/null); then
		tree_version
	elif git -C "$top" diff --quiet HEAD -- . "${@/#/:(exclude)}"; then
		echo "$commit"
	else
		echo "$commit+"
	fi
}

# When the tree was last committed, in seconds; an unpacked tarball's files have that time.
tree_time()
{
	if [ -e "$top/.git" ]; then
		git -C "$top" log -1 --format=%ct
	else
		stat -c %Y "$top/meson.build"
	fi
}

# Copy the files that git knows, as they are now, or of an unpacked tarball all but what was built.
tree_copy() # DIRECTORY
{
	mkdir -p "$1"
	if [ -e "$top/.git" ]; then
		git -C "$top" ls-files --deduplicate -z
	else
		find "$top" -mindepth 1 -path "$top/build*" -prune -o ! -type d -printf '%P\0'
	fi | (cd "$top" && xargs -0 cp --parents -P -p -t "$1")
}

# Install PyPI packages NAME==VERSION into a virtual environment, unless they are there.
python_tools() # DIRECTORY PACKAGE...
{
	local directory=$1

	shift
	[ "$(cat "$directory/versions" 2>/dev/null)" != "$*" ] || return 0
	rm -rf "$directory"
	python3 -m venv "$directory" &&
		"$directory/bin/pip" install --quiet --disable-pip-version-check "$@" &&
		echo "$*" >"$directory/versions"
}
