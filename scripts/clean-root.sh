# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A clean root of Debian 12, made by debootstrap, and commands that run in it: for tests that source
# this after tests/cases.sh, which names $directory. Needs root and an archive of Debian 12 in the
# list of sources of this machine's apt.

# Exit 77 where no root can be made.
clean_root_or_skip()
{
	# shellcheck disable=SC2016 # apt's variable
	archive=$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' 2>/dev/null |
		sort -u | head -n 1)
	if [ "$(id -u)" != 0 ] || [ -z "$archive" ]; then
		echo "this needs root, and an archive of Debian 12 in apt's list of sources"
		exit 77
	fi
	if ! /usr/lib/apt/apt-helper download-file "${archive%/}/dists/bookworm/InRelease" \
		"$directory/InRelease" >"$directory/archive.log" 2>&1; then
		tail -n 3 "$directory/archive.log"
		echo "the archive of Debian 12 cannot be reached"
		exit 77
	fi
}

# Make a root; it takes packages from where this machine takes them.
clean_root() # DIRECTORY
{
	debootstrap --variant=minbase bookworm "$1" "$archive" >"$directory/debootstrap.log" 2>&1 ||
		{ tail -n 5 "$directory/debootstrap.log" && return 1; }
	apt-config dump Acquire >"$1/etc/apt/apt.conf.d/90-of-the-host"
	echo 'APT::Sandbox::User "root";' >>"$1/etc/apt/apt.conf.d/90-of-the-host"
}

# Run a command in a root, with /proc, /dev/shm and /run of its own; it ends what the command left
# running.
in_root() # ROOT COMMAND...
{
	local where=$1

	shift
	# shellcheck disable=SC2016
	unshare --mount --pid --fork --kill-child --propagation private sh -c '
		mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/dev/shm" &&
			mount -t tmpfs -o mode=755 tmpfs "$0/run" && exec chroot "$0" "$@"' \
		"$where" env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}

# ---- a root that systemd has booted ------------------------------------------------------------

booted=       # the process that waits for its systemd
booted_init=  # its systemd
booted_group= # its control group

# Boot the systemd of a root, in namespaces of its own, as containers do. It may not load modules,
# set the clock or write to /proc/sys. False: this machine does not permit that.
root_boot() # ROOT
{
	local deadline=$((SECONDS + 120)) groups

	groups=$(findmnt --noheadings --output TARGET --types cgroup2 | head -n 1)
	[ -n "$groups" ] && mkdir "$groups/wherry-$$" || return
	booted_group=$groups/wherry-$$
	trap 'root_halt; clean_up' EXIT
	: >"$directory/console"
	# shellcheck disable=SC2016
	sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$booted_group" \
		setpriv --bounding-set -sys_module,-sys_time,-sys_boot,-sys_rawio,-syslog \
		unshare --mount --pid --fork --kill-child --cgroup --uts --ipc --net \
		--propagation private sh -c '
			mount --bind "$0" "$0" && cd "$0" && mount -t proc proc proc &&
			mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys &&
			mount -t sysfs -o ro sysfs sys && mount -t cgroup2 cgroup2 sys/fs/cgroup &&
			mount -t tmpfs -o mode=755 run run && mount -t tmpfs shm dev/shm &&
			mount --bind "$1" dev/console && pivot_root . . && umount -l . &&
			exec chroot . env -i container=other \
			PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd' "$1" "$directory/console" \
		</dev/null >"$directory/boot.log" 2>&1 &
	booted=$!
	while kill -0 "$booted" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do
		booted_init=$(cat "/proc/$booted/task/$booted/children" 2>/dev/null)
		booted_init=${booted_init%% *}
		# What has no place in a container fails: it is up all the same.
		case $(in_booted timeout 60 systemctl is-system-running --wait 2>/dev/null) in
		running | degraded) return 0 ;;
		esac
		sleep 0.2
	done
	cat "$directory/boot.log" "$directory/console"
	return 1
}

in_booted() # COMMAND...
{
	[ -n "$booted_init" ] && nsenter --target "$booted_init" --mount --uts --ipc --net --pid \
		--cgroup --root --wd env -i LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# End all of it.
# shellcheck disable=SC2317 # called by the trap
root_halt()
{
	[ -z "$booted" ] || { kill -KILL "$booted" && wait "$booted"; } 2>/dev/null
	if [ -n "$booted_group" ]; then
		echo 1 >"$booted_group/cgroup.kill"
		while grep -q 'populated 1' "$booted_group/cgroup.events"; do sleep 0.1; done
		find "$booted_group" -depth -type d -exec rmdir {} +
	fi
	booted='' booted_init='' booted_group=''
}
