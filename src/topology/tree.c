/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files of /sys, /proc and /dev below a root, and recording them. */
#include "topology/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "util/text.h"

/* ---- recording ------------------------------------------------------------------------------- */

/* Make the folders of a path below tree->record, all but the last name. */
static void make_folders(const struct wh_tree *tree, char *path)
{
	for (char *at = path + strlen(tree->record) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(path, 0777);
		*at = '/';
	}
}

/* RECORD/PATH, and make its folders. False: it is too long. */
static bool record_path(const struct wh_tree *tree, const char *path, char *out, size_t size)
{
	int length = snprintf(out, size, "%s%s", tree->record, path);

	if (length < 0 || (size_t)length >= size)
		return false;
	make_folders(tree, out);
	return true;
}

static void record_file(const struct wh_tree *tree, const char *path, const char *bytes,
			size_t count)
{
	char copy[WH_TREE_PATH];
	int fd;

	if (!tree->record || !record_path(tree, path, copy, sizeof(copy)))
		return;
	/* An empty file, which only records existence, must not replace recorded contents. */
	fd = open(copy, O_WRONLY | O_CREAT | (count ? O_TRUNC : O_EXCL) | O_CLOEXEC, 0666);
	if (fd < 0)
		return;
	if (write(fd, bytes, count) != (ssize_t)count)
		unlink(copy); /* better no file than half a file */
	close(fd);
}

/* Record a link and the folder that it leads to, through which files are read later. Links in sysfs
 * are relative. */
static void record_link(const struct wh_tree *tree, const char *path, const char *target)
{
	char copy[WH_TREE_PATH], folder[2 * WH_TREE_PATH];

	if (!tree->record || *target == '/' || !record_path(tree, path, copy, sizeof(copy)))
		return;
	if (symlink(target, copy) && errno != EEXIST)
		return;
	*strrchr(copy, '/') = '\0';
	if ((size_t)snprintf(folder, sizeof(folder), "%s/%s/", copy, target) < sizeof(folder))
		make_folders(tree, folder);
}

static void record_folder(const struct wh_tree *tree, const char *path)
{
	char copy[WH_TREE_PATH];

	if (tree->record && record_path(tree, path, copy, sizeof(copy)))
		mkdir(copy, 0777);
}

/* ---- reading --------------------------------------------------------------------------------- */

static int full_path(const struct wh_tree *tree, const char *path, char *out)
{
	int length = snprintf(out, WH_TREE_PATH, "%s%s", tree->root, path);

	return length < 0 || length >= WH_TREE_PATH ? -ENAMETOOLONG : 0;
}

int wh_tree_read(const struct wh_tree *tree, const char *path, char *out, size_t size)
{
	char full[WH_TREE_PATH];
	size_t used = 0;
	ssize_t count = 0;
	int fd, error = full_path(tree, path, full);

	if (error)
		return error;
	/* O_NONBLOCK: a recorded tree may have a pipe in place of a file. */
	fd = open(full, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	while (used < size - 1) {
		count = read(fd, out + used, size - 1 - used);
		if (count <= 0)
			break;
		used += (size_t)count;
	}
	error = count < 0 ? -errno : (int)used;
	close(fd);
	out[used] = '\0';
	if (error >= 0)
		record_file(tree, path, out, used);
	return error;
}

int wh_tree_line(const struct wh_tree *tree, const char *folder, const char *file, char *out,
		 size_t size)
{
	char path[WH_TREE_PATH];
	int length = snprintf(path, sizeof(path), "%s/%s", folder, file);

	if (length < 0 || (size_t)length >= sizeof(path))
		return -ENAMETOOLONG;
	length = wh_tree_read(tree, path, out, size);
	if (length < 0) {
		*out = '\0';
		return length;
	}
	out[strcspn(out, "\n")] = '\0';
	for (char *c = out; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = ' ';
	wh_text_clean(out); /* it may reach a terminal */
	for (size_t end = strlen(out); end && out[end - 1] == ' '; end--)
		out[end - 1] = '\0';
	return 0;
}

int wh_tree_number(const struct wh_tree *tree, const char *folder, const char *file, int64_t *out)
{
	char text[64], *end;
	int error = wh_tree_line(tree, folder, file, text, sizeof(text));
	int64_t value;

	if (error)
		return error;
	errno = 0;
	value = strtoll(text, &end, 0);
	if (end == text || errno)
		return -EINVAL;
	*out = value;
	return 0;
}

int wh_tree_link(const struct wh_tree *tree, const char *path, char *out, size_t size)
{
	char full[WH_TREE_PATH];
	ssize_t length;
	int error = full_path(tree, path, full);

	if (error)
		return error;
	length = readlink(full, out, size);
	if (length < 0)
		return -errno;
	if ((size_t)length >= size)
		return -ENAMETOOLONG;
	out[length] = '\0';
	record_link(tree, path, out);
	return 0;
}

int wh_tree_exists(const struct wh_tree *tree, const char *path)
{
	char full[WH_TREE_PATH];
	struct stat status;
	int error = full_path(tree, path, full);

	if (error)
		return error;
	if (stat(full, &status))
		return -errno;
	if (S_ISDIR(status.st_mode))
		record_folder(tree, path);
	else
		record_file(tree, path, "", 0);
	return 0;
}

int wh_tree_open(const struct wh_tree *tree, const char *path, bool write)
{
	char full[WH_TREE_PATH];
	int fd, error = full_path(tree, path, full);

	if (error)
		return error;
	fd = open(full, (write ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	close(fd);
	record_file(tree, path, "", 0);
	return 0;
}

int wh_tree_device(const struct wh_tree *tree, const char *path, int *out)
{
	char full[WH_TREE_PATH], text[32];
	struct stat status;
	int error = full_path(tree, path, full);

	if (error)
		return error;
	if (stat(full, &status))
		return -errno;
	if (S_ISCHR(status.st_mode))
		*out = (int)major(status.st_rdev);
	else if (wh_tree_read(tree, path, text, sizeof(text)) < 0 ||
		 sscanf(text, "char %d", out) != 1)
		return -EINVAL;
	record_file(tree, path, text, (size_t)snprintf(text, sizeof(text), "char %d\n", *out));
	return 0;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static int names_compare(const void *a, const void *b)
{
	return strverscmp(*(char *const *)a, *(char *const *)b);
}

static int names_add(struct wh_tree_names *names, const char *name)
{
	char **more = realloc(names->name, (names->count + 1) * sizeof(*more));

	if (!more)
		return -ENOMEM;
	names->name = more;
	more[names->count] = strdup(name);
	return more[names->count] ? (names->count++, 0) : -ENOMEM;
}

int wh_tree_list(const struct wh_tree *tree, const char *path, struct wh_tree_names *out)
{
	char full[WH_TREE_PATH];
	struct dirent *entry;
	DIR *folder;
	int error = full_path(tree, path, full);

	*out = (struct wh_tree_names){ 0 };
	if (error)
		return error;
	folder = opendir(full);
	if (!folder)
		return -errno;
	while (!error && (entry = readdir(folder))) {
		if (entry->d_name[0] == '.')
			continue;
		error = names_add(out, entry->d_name);
		/* Links and files are recorded when they are read. */
		if (entry->d_type == DT_DIR && (size_t)snprintf(full, sizeof(full), "%s/%s", path,
								entry->d_name) < sizeof(full))
			record_folder(tree, full);
	}
	closedir(folder);
	if (error) {
		wh_tree_names_free(out);
		return error;
	}
	if (out->count)
		qsort(out->name, out->count, sizeof(*out->name), names_compare);
	record_folder(tree, path);
	return 0;
}

void wh_tree_names_free(struct wh_tree_names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->name[i]);
	free(names->name);
	*names = (struct wh_tree_names){ 0 };
}
