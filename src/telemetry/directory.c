/* SPDX-License-Identifier: Apache-2.0 */
/* The directories of observers' sockets, and whether they are safe to use. */
#include "telemetry/directory.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

bool wh_observer_directory(unsigned index, const char *runtime, char *out, size_t size)
{
	unsigned user = (unsigned)geteuid();
	int length = 0;

	out[0] = 0;
	switch (index) {
	case 0:
		if (runtime && *runtime == '/')
			length = snprintf(out, size, "%s/wherry", runtime);
		break;
	case 1:
		length = snprintf(out, size, "/run/user/%u/wherry", user);
		break;
	case 2:
		length = snprintf(out, size, "/tmp/wherry-%u", user);
		break;
	default:
		return false;
	}
	if (length >= (int)size)
		out[0] = 0;
	return true;
}

int wh_observer_check(const char *directory)
{
	struct stat status;

	/* lstat(): in /tmp anybody can create a link of that name. */
	if (lstat(directory, &status))
		return -errno;
	if (!S_ISDIR(status.st_mode))
		return -ENOTDIR;
	return status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) ? -EPERM : 0;
}

int wh_observer_make(const char *directory)
{
	if (mkdir(directory, 0700) && errno != EEXIST)
		return -errno;
	return wh_observer_check(directory);
}
