/* SPDX-License-Identifier: Apache-2.0 */
/* Directories on the disks of hosts: below /disk/, with names that are made, replaced and removed.
 * They survive the processes. When the power of a host fails, its disks keep what fsync() has
 * written; of all else, any part: blocks of files, the length, and the changes of names up to one
 * of the last few seconds. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "calls.h"
#include "world.h"

#define PATH 160
#define DIRECTORY_MODE 0700 /* of all that are copied */
#define COMMIT (5 * SIM_SEC) /* a name that was changed before is on the disk */

/* It stays for ever; `there` says whether it is a name now. */
struct name {
	struct name *next;
	int host;
	char path[PATH];
	bool there;
	struct file *file; /* NULL: a directory */
	unsigned mode; /* of a directory */
	int64_t mtime;
};

/* A change that a power failure may take back. */
struct change {
	int64_t at;
	struct name *name;
	bool there;
	struct file *file;
};

/* What readdir() goes through. */
struct stream {
	struct stream *next;
	int fd, index;
	const struct name *at; /* the last one that was told */
	struct dirent entry;
};

static struct name *names, **names_end = &names;
static struct change *changes;
static size_t change_count, change_room;
static struct stream *streams;

/* ---- names ----------------------------------------------------------------------------------- */

static struct name *name_find(int host, const char *path)
{
	for (struct name *name = names; name; name = name->next)
		if (name->host == host && strcmp(name->path, path) == 0)
			return name->there ? name : NULL;
	return NULL;
}

static struct name *name_of(int host, const char *path)
{
	struct name *name = names;

	while (name && (name->host != host || strcmp(name->path, path) != 0))
		name = name->next;
	if (name)
		return name;
	name = calloc(1, sizeof(*name));
	name->host = host;
	snprintf(name->path, sizeof(name->path), "%s", path);
	*names_end = name;
	names_end = &name->next;
	return name;
}

static void name_set(struct name *name, bool there, struct file *file)
{
	if (change_count == change_room)
		changes = sim_grow(changes, change_room = 2 * change_room + 256, sizeof(*changes));
	changes[change_count++] = (struct change){ sim_time, name, name->there, name->file };
	name->there = there;
	name->file = file;
}

unsigned file_links(const struct file *file)
{
	unsigned count = 0;

	for (const struct name *name = names; name; name = name->next)
		count += name->there && name->file == file;
	return count;
}

static void parent_of(const char *path, char out[PATH])
{
	const char *slash = strrchr(path, '/');

	snprintf(out, PATH, "%.*s", (int)(slash - path), path);
}

/* What a name is called below a folder, whether it is there or not; NULL: it is elsewhere. */
static const char *path_below(const struct name *name, const struct name *folder)
{
	size_t length = strlen(folder->path);

	if (name->host != folder->host || name == folder ||
	    strncmp(name->path, folder->path, length) != 0 || name->path[length] != '/')
		return NULL;
	return name->path + length + 1;
}

/* Is it in this folder, or somewhere below it with `deep`? Returns its name there. */
static const char *name_below(const struct name *name, const struct name *folder, bool deep)
{
	const char *below = name->there ? path_below(name, folder) : NULL;

	return below && (deep || !strchr(below, '/')) ? below : NULL;
}

bool path_is_disk(const char *path)
{
	return strncmp(path, "/disk/", 6) == 0;
}

/* ---- what the world does --------------------------------------------------------------------- */

void sim_folder_new(int host, const char *path)
{
	struct name *name = name_of(host, path);

	name->there = true;
	name->mode = DIRECTORY_MODE;
}

void sim_file_put(int host, const char *path, const uint8_t *bytes, size_t size, unsigned mode,
		  int64_t mtime)
{
	struct name *name = name_of(host, path);

	name->there = true;
	name->file = file_new_named(host);
	file_resize(name->file, size);
	memcpy(name->file->bytes, bytes, size);
	name->file->mode = mode;
	name->file->mtime = mtime;
	file_synced(name->file);
}

void sim_file_link(int host, const char *path, const char *other)
{
	struct name *name = name_of(host, other);

	name->there = true;
	name->file = name_find(host, path)->file;
}

void sim_folder_empty(int host, const char *path)
{
	const struct name *folder = name_find(host, path);
	size_t kept = 0;

	if (!folder)
		return;
	for (struct name *name = names; name; name = name->next)
		if (path_below(name, folder))
			name->there = false;
	/* That is on the disk at once: no power failure takes back what was there before. */
	for (size_t i = 0; i < change_count; i++)
		if (!path_below(changes[i].name, folder))
			changes[kept++] = changes[i];
	change_count = kept;
}

bool sim_file_next(int host, const char *path, struct sim_file *out)
{
	const struct name *folder = name_find(host, path);
	const struct name *name = out->at ? ((const struct name *)out->at)->next : names;

	for (; name && folder; name = name->next) {
		const char *below = name_below(name, folder, true);

		if (!below || !name->file)
			continue;
		*out = (struct sim_file){ .at = name,
					  .name = below,
					  .bytes = name->file->bytes,
					  .size = name->file->size,
					  .mode = name->file->mode,
					  .mtime = name->file->mtime };
		return true;
	}
	return false;
}

void names_lose_power(int host)
{
	size_t first = change_count, kept = 0;

	while (first && changes[first - 1].at > sim_time - COMMIT)
		first--;
	first += sim_draw_world(change_count - first + 1);
	for (size_t i = change_count; i > first; i--)
		if (changes[i - 1].name->host == host) {
			changes[i - 1].name->there = changes[i - 1].there;
			changes[i - 1].name->file = changes[i - 1].file;
		}
	for (size_t i = 0; i < change_count; i++)
		if (changes[i].name->host != host)
			changes[kept++] = changes[i];
	change_count = kept;
}

/* ---- opening --------------------------------------------------------------------------------- */

static uint32_t folder_events(const struct descriptor *descriptor)
{
	(void)descriptor;
	return EPOLLIN;
}

static const struct descriptor_kind kind_folder = {
	.name = "directory",
	.events = folder_events,
};

static struct name *folder_of(int fd)
{
	const struct descriptor *descriptor = descriptor_of(fd);

	return descriptor ? descriptor->folder : NULL;
}

static int refuse(const char *call, int error)
{
	return (int)call_failed(call, -1, error);
}

/* Make a file of that name. NULL: errno is set. */
static struct name *create(const char *call, int host, const char *path)
{
	char parent[PATH];
	struct name *name;

	parent_of(path, parent);
	if (!name_find(host, parent)) {
		refuse(call, ENOENT);
		return NULL;
	}
	name = name_of(host, path);
	if (sim_chance(sim_options.disk_full)) {
		refuse(call, ENOSPC);
		return NULL;
	}
	name_set(name, true, file_new_named(host));
	return name;
}

static int open_path(const char *call, int host, const char *path, int flags)
{
	struct name *name = name_find(host, path);
	struct descriptor *descriptor;
	int error = disk_wait(NULL, false);

	if (error)
		return refuse(call, error);
	if (node_lacks_descriptors())
		return refuse(call, EMFILE);
	if (name && (flags & O_CREAT) && (flags & O_EXCL))
		return refuse(call, EEXIST);
	if (!name && !(flags & O_CREAT))
		return refuse(call, ENOENT);
	if (name && name->file && (flags & O_DIRECTORY))
		return refuse(call, ENOTDIR);
	if (name && !name->file && (flags & O_ACCMODE) != O_RDONLY)
		return refuse(call, EISDIR);
	if (flags & O_DIRECT)
		return refuse(call, EINVAL);
	if (!name)
		name = create(call, host, path);
	if (!name)
		return -1;
	descriptor = name->file ? disk_descriptor(name->file) : descriptor_new(&kind_folder);
	descriptor->folder = name->file ? NULL : name;
	descriptor->flags = flags;
	return (int)call_result(call, -1, descriptor->fd);
}

int names_open(const char *path, int flags)
{
	call_point("open", (uint64_t)flags);
	return open_path("open", node_of(node_self())->host, path, flags);
}

/* The path of a name in an open folder. */
static void path_at(const struct name *folder, const char *name, char out[PATH])
{
	if (strcmp(name, ".") == 0)
		snprintf(out, PATH, "%s", folder->path);
	else if ((size_t)snprintf(out, PATH, "%s/%s", folder->path, name) >= PATH)
		sim_die("the path %s/%s is too long", folder->path, name);
}

static int open_at(const char *call, int fd, const char *name, int flags)
{
	const struct name *folder = folder_of(fd);
	char path[PATH];

	call_point(call, (uint64_t)flags);
	if (!folder)
		return refuse(call, EBADF);
	path_at(folder, name, path);
	return open_path(call, folder->host, path, flags);
}

int sim_openat(int fd, const char *name, int flags, ...)
{
	va_list arguments;
	unsigned mode;

	va_start(arguments, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, unsigned) : 0;
	va_end(arguments);
	return folder_of(fd) ? open_at("openat", fd, name, flags) : openat(fd, name, flags, mode);
}

long names_openat2(int fd, const char *name, const struct open_how *how)
{
	return open_at("openat2", fd, name, (int)how->flags);
}

/* ---- changing names -------------------------------------------------------------------------- */

/* The folder and the path of a name that a call changes. NULL: errno is set. */
static struct name *change_begin(const char *call, int fd, const char *name, char path[PATH])
{
	struct name *folder = folder_of(fd);
	int error;

	call_point(call, (uint64_t)fd);
	error = folder ? disk_wait(NULL, true) : EBADF;
	if (error) {
		refuse(call, error);
		return NULL;
	}
	path_at(folder, name, path);
	return folder;
}

int sim_mkdirat(int fd, const char *name, mode_t mode)
{
	const struct name *folder;
	char path[PATH];

	if (!folder_of(fd))
		return mkdirat(fd, name, mode);
	folder = change_begin("mkdirat", fd, name, path);
	if (!folder)
		return -1;
	if (name_find(folder->host, path))
		return refuse("mkdirat", EEXIST);
	if (mode & ~DIRECTORY_MODE)
		sim_fail("files", "the copy %s of a private directory is made with mode %o", path,
			 mode);
	name_set(name_of(folder->host, path), true, NULL);
	name_of(folder->host, path)->mode = mode;
	return (int)call_result("mkdirat", fd, 0);
}

int sim_unlinkat(int fd, const char *name, int flags)
{
	const struct name *folder;
	struct name *found;
	char path[PATH];

	if (!folder_of(fd))
		return unlinkat(fd, name, flags);
	folder = change_begin("unlinkat", fd, name, path);
	if (!folder)
		return -1;
	found = name_find(folder->host, path);
	if (!found)
		return refuse("unlinkat", ENOENT);
	name_set(found, false, NULL);
	return (int)call_result("unlinkat", fd, 0);
}

int sim_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	char path[PATH], target[PATH];
	const struct name *folder;
	struct name *found;
	struct file *file;

	if (!folder_of(from_fd))
		return renameat(from_fd, from, to_fd, to);
	folder = change_begin("renameat", from_fd, from, path);
	if (!folder)
		return -1;
	path_at(folder_of(to_fd), to, target);
	found = name_find(folder->host, path);
	if (!found)
		return refuse("renameat", ENOENT);
	file = found->file;
	/* In this order: a power failure between the two leaves both names, not none. */
	name_set(name_of(folder->host, target), true, file);
	name_set(found, false, NULL);
	return (int)call_result("renameat", from_fd, 0);
}

/* ---- looking --------------------------------------------------------------------------------- */

static void name_stat(const struct name *name, struct stat *out)
{
	if (name->file)
		disk_stat(name->file, out);
	else
		*out = (struct stat){ .st_mode = S_IFDIR | name->mode,
				      .st_mtim = { name->mtime / SIM_SEC, name->mtime % SIM_SEC },
				      .st_uid = geteuid() };
}

bool folder_stat(int fd, struct stat *out)
{
	const struct name *folder = folder_of(fd);

	if (folder)
		name_stat(folder, out);
	return folder;
}

bool folder_has(int fd)
{
	return folder_of(fd);
}

int folder_chmod(int fd, mode_t mode)
{
	call_point("fchmod", (uint64_t)fd);
	folder_of(fd)->mode = mode & 07777;
	return (int)call_result("fchmod", fd, 0);
}

int folder_set_time(int fd, int64_t mtime)
{
	call_point("futimens", (uint64_t)fd);
	folder_of(fd)->mtime = mtime;
	return (int)call_result("futimens", fd, 0);
}

int sim_fstatat(int fd, const char *name, struct stat *out, int flags)
{
	const struct name *folder = folder_of(fd), *found;
	char path[PATH];

	if (!folder)
		return fstatat(fd, name, out, flags);
	call_point("fstatat", (uint64_t)fd);
	path_at(folder, name, path);
	found = name_find(folder->host, path);
	if (!found)
		return refuse("fstatat", ENOENT);
	name_stat(found, out);
	return (int)call_result("fstatat", fd, 0);
}

int sim_stat(const char *path, struct stat *out)
{
	const struct name *name;

	if (!path_is_disk(path))
		return stat(path, out);
	call_point("stat", 0);
	name = name_find(node_of(node_self())->host, path);
	if (!name)
		return refuse("stat", ENOENT);
	name_stat(name, out);
	return (int)call_result("stat", -1, 0);
}

char *sim_realpath(const char *path, char *out)
{
	if (!path_is_disk(path))
		return realpath(path, out);
	if (name_find(node_of(node_self())->host, path))
		return strdup(path);
	errno = ENOENT;
	return NULL;
}

/* ---- listing --------------------------------------------------------------------------------- */

static struct stream **stream_find(const DIR *folder)
{
	struct stream **link = &streams;

	while (*link && (const void *)*link != (const void *)folder)
		link = &(*link)->next;
	return link;
}

DIR *sim_fdopendir(int fd)
{
	struct stream *stream;

	if (!folder_of(fd))
		return fdopendir(fd);
	stream = calloc(1, sizeof(*stream));
	stream->fd = fd;
	stream->next = streams;
	streams = stream;
	return (DIR *)stream;
}

struct dirent *sim_readdir(DIR *folder)
{
	struct stream *stream = *stream_find(folder);
	static const char *const own[] = { ".", ".." };
	const char *found = NULL;

	if (!stream)
		return readdir(folder);
	call_point("readdir", 0);
	if (stream->index < 2) {
		found = own[stream->index++];
	} else {
		const struct name *at = stream->at ? stream->at->next : names;

		while (at && !(found = name_below(at, folder_of(stream->fd), false)))
			at = at->next;
		stream->at = at ? at : stream->at;
	}
	if (!found)
		return NULL;
	snprintf(stream->entry.d_name, sizeof(stream->entry.d_name), "%s", found);
	return &stream->entry;
}

int sim_closedir(DIR *folder)
{
	struct stream **link = stream_find(folder), *stream = *link;

	if (!stream)
		return closedir(folder);
	*link = stream->next;
	sim_close(stream->fd);
	free(stream);
	return 0;
}
