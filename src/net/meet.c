/* SPDX-License-Identifier: Apache-2.0 */
/* Unix sockets by path, for engines of one machine in different containers. */
#include "net/meet.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "platform/owner.h"
#include "wire/bytes.h"

#define PREFIX "wherry-"
#define DIGITS 32
#define NEW ".new" /* follows the name until the socket listens */
#define NEW_SECONDS 60 /* until such a name is a leftover */
#define SWEEP_MOST 4096 /* entries that are looked at, at most */
#define BACKLOG 64

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* ---- folders -------------------------------------------------------------------------------- */

static void folders_add(struct wh_meet_folders *folders, const char *path, size_t length)
{
	if (folders->count == WH_MEET_FOLDERS || !length || length >= WH_CONFIG_TEXT)
		return;
	memcpy(folders->path[folders->count], path, length);
	folders->path[folders->count++][length] = 0;
}

void wh_meet_folders(const char *setting, struct wh_meet_folders *out)
{
	static const char *const usual[] = { "/run/wherry", "/dev/shm" };
	struct wh_config_paths table;

	memset(out, 0, sizeof(*out));
	out->given = *setting;
	if (!strcmp(setting, "off"))
		return;
	for (const char *at = setting; *at;) {
		size_t length = strcspn(at, ",");

		folders_add(out, at, length);
		at += length + (at[length] == ',');
	}
	if (out->given)
		return;
	wh_config_paths(&table);
	folders_add(out, table.runtime, strlen(table.runtime));
	for (unsigned i = 0; i < sizeof(usual) / sizeof(*usual); i++)
		folders_add(out, usual[i], strlen(usual[i]));
}

void wh_meet_text(const struct wh_meet_folders *folders, char *out, size_t size)
{
	size_t at = 0;

	*out = 0;
	for (unsigned i = 0; i < folders->count && at < size; i++)
		at += (size_t)snprintf(out + at, size - at, "%s%s", i ? ", " : "",
				       folders->path[i]);
}

/* ---- names ---------------------------------------------------------------------------------- */

static size_t name_length(const char *name)
{
	const char *digits = name + strlen(PREFIX);

	if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 ||
	    strspn(digits, "0123456789abcdef") < DIGITS)
		return 0;
	return strlen(PREFIX) + DIGITS;
}

bool wh_meet_name_valid(const char *name)
{
	size_t length = name_length(name);

	return length && !name[length];
}

int wh_meet_name(char out[WH_MEET_NAME])
{
	uint64_t number[2];

	if (getrandom(number, sizeof(number), 0) != sizeof(number))
		return -EIO;
	snprintf(out, WH_MEET_NAME, PREFIX "%016llx%016llx", (unsigned long long)number[0],
		 (unsigned long long)number[1]);
	return 0;
}

/* The address of what is in a directory, or of the directory's descriptor itself (`name` NULL):
 * there is no bind() or connect() that starts at a directory. */
static struct sockaddr_un path_address(int descriptor, const char *name, const char *suffix)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(address.sun_path, sizeof(address.sun_path), "/proc/self/fd/%d%s%s%s", descriptor,
		 name ? "/" : "", name ? name : "", suffix);
	return address;
}

/* ---- the directory -------------------------------------------------------------------------- */

static int meet_fail(char why[WH_REFUSAL], int error, const char *folder, const char *what)
{
	snprintf(why, WH_REFUSAL, "%.80s/wherry-%u: %.70s", folder, (unsigned)geteuid(), what);
	return -error;
}

static int directory_check(int fd, const char *folder, char why[WH_REFUSAL])
{
	struct stat status;
	char what[80];

	if (fstat(fd, &status))
		return meet_fail(why, errno, folder, strerror(errno));
	if (status.st_uid == geteuid() && wh_user_is_known(status.st_uid) &&
	    !(status.st_mode & 077))
		return 0;
	snprintf(what, sizeof(what),
		 "refused: it is of user %u and mode %04o, not of this user and 0700",
		 (unsigned)status.st_uid, (unsigned)status.st_mode & 07777);
	return meet_fail(why, EPERM, folder, what);
}

int wh_meet_directory(const char *folder, bool make, char why[WH_REFUSAL])
{
	int parent = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), fd, error;
	char name[32];

	if (parent < 0) {
		error = errno;
		snprintf(why, WH_REFUSAL, "%.120s: %s", folder, strerror(error));
		return -error;
	}
	snprintf(name, sizeof(name), "wherry-%u", (unsigned)geteuid());
	if (make && mkdirat(parent, name, 0700) && errno != EEXIST) {
		error = meet_fail(why, errno, folder, strerror(errno));
		close(parent);
		return error;
	}
	/* In /dev/shm anybody can make a link, or a directory, of that name. */
	fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	error = fd < 0 ? meet_fail(why, errno, folder, strerror(errno)) :
			 directory_check(fd, folder, why);
	close(parent);
	if (!error)
		return fd;
	if (fd >= 0)
		close(fd);
	return error;
}

/* Does nobody listen on the socket of that name any more? A datagram socket cannot connect to a
 * socket of streams: the kernel says so if there is one, and no engine notices. */
static bool socket_is_dead(int directory, const char *name)
{
	struct sockaddr_un address = path_address(directory, name, "");
	int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool dead = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) &&
		    errno == ECONNREFUSED;

	if (fd >= 0)
		close(fd);
	return dead;
}

/* May the entry be the name of an engine that has ended? */
static bool entry_is_dead(int directory, const char *name)
{
	size_t length = name_length(name);
	struct stat status;
	bool made = length && !strcmp(name + length, NEW);

	if (!length || (name[length] && !made) ||
	    fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) || !S_ISSOCK(status.st_mode))
		return false;
	/* While bind() runs, a socket looks like a dead one's. */
	if (made && status.st_ctime + NEW_SECONDS > time(NULL))
		return false;
	return socket_is_dead(directory, name);
}

unsigned wh_meet_sweep(int directory)
{
	int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
	const struct dirent *entry;
	unsigned removed = 0;

	if (!list) {
		if (fd >= 0)
			close(fd);
		return 0;
	}
	for (unsigned i = 0; i < SWEEP_MOST && (entry = readdir(list)); i++)
		if (entry_is_dead(directory, entry->d_name) &&
		    !unlinkat(directory, entry->d_name, 0))
			removed++;
	closedir(list);
	return removed;
}

/* ---- the owner ------------------------------------------------------------------------------ */

/* Bind under a temporary name, which no sweep takes for a dead engine's, and rename it when the
 * socket listens. 0 or a negative errno. */
static int socket_listen_at(int fd, int directory, const char *name)
{
	struct sockaddr_un address = path_address(directory, name, NEW);
	const char *made = strrchr(address.sun_path, '/') + 1;
	int error;

	/* Whatever the umask is. */
	if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&address, sizeof(address)))
		return -errno;
	if (!listen(fd, BACKLOG) && !renameat(directory, made, directory, name))
		return 0;
	error = -errno;
	unlinkat(directory, made, 0);
	return error;
}

int wh_meet_listen(const char *folder, const char *name, struct wh_meet *out, char why[WH_REFUSAL])
{
	int directory = wh_meet_directory(folder, true, why), fd, error;

	if (directory < 0)
		return directory;
	wh_meet_sweep(directory);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	error = fd < 0 ? -errno : socket_listen_at(fd, directory, name);
	if (error) {
		meet_fail(why, -error, folder, strerror(-error));
		if (fd >= 0)
			close(fd);
		close(directory);
		return error;
	}
	out->directory = directory;
	snprintf(out->name, sizeof(out->name), "%s", name);
	return fd;
}

void wh_meet_leave(struct wh_meet *meet)
{
	if (meet->directory < 0)
		return;
	unlinkat(meet->directory, meet->name, 0);
	close(meet->directory);
	meet->directory = -1;
}

/* ---- the initiator -------------------------------------------------------------------------- */

/* Open the socket itself, so that nothing can take its place before connect(). */
static int socket_open(int directory, const char *folder, const char *name, char why[WH_REFUSAL])
{
	int fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat status;

	if (fd < 0)
		return -errno;
	if (!fstat(fd, &status) && S_ISSOCK(status.st_mode) && status.st_uid == geteuid())
		return fd;
	close(fd);
	return meet_fail(why, EPERM, folder,
			 "refused: what has the peer's name is no socket of "
			 "this user");
}

int wh_meet_find(const struct wh_meet_folders *folders, const char *name, char why[WH_REFUSAL])
{
	char reason[WH_REFUSAL], text[80];
	bool refused = false;
	int directory, fd;

	if (!wh_meet_name_valid(name)) {
		snprintf(why, WH_REFUSAL, "the peer's socket has no name as an engine makes it");
		return -EPROTO;
	}
	for (unsigned i = 0; i < folders->count; i++) {
		directory = wh_meet_directory(folders->path[i], false, reason);
		fd = directory < 0 ? directory :
				     socket_open(directory, folders->path[i], name, reason);
		if (directory >= 0)
			close(directory);
		if (fd >= 0)
			return fd;
		if (fd != -ENOENT && !refused) {
			refused = true;
			memcpy(why, reason, WH_REFUSAL);
		}
	}
	if (refused)
		return -EPERM;
	wh_meet_text(folders, text, sizeof(text));
	snprintf(why, WH_REFUSAL,
		 "its socket is not in %s here: mount one folder into both "
		 "containers, at /run/wherry or as the setting meet says",
		 *text ? text : "any folder");
	return -ENOENT;
}

int wh_meet_connect(int socket, int found)
{
	struct sockaddr_un address = path_address(found, NULL, "");

	return connect(socket, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
}

/* ---- who is at the ends --------------------------------------------------------------------- */

/* Has the owner's end of the connection a path? */
static bool socket_has_path(int socket, bool owner)
{
	struct sockaddr_un address = { .sun_family = AF_UNSPEC };
	socklen_t length = sizeof(address);
	int error = owner ? getsockname(socket, (struct sockaddr *)&address, &length) :
			    getpeername(socket, (struct sockaddr *)&address, &length);

	return !error && address.sun_family == AF_UNIX &&
	       length > offsetof(struct sockaddr_un, sun_path) && *address.sun_path;
}

/* The kernel's number of the process at the other end: that of its pidfd's inode, which since Linux
 * 6.9 is the process's alone, in all namespaces, until the next boot. 0: the kernel has none. */
static int socket_peer_number(int socket, uint64_t *number)
{
	socklen_t length = sizeof(int);
	struct stat status;
	int pidfd, error;

	*number = 0;
	if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length))
		return errno == ENOPROTOOPT ? 0 : -errno;
	error = fstat(pidfd, &status) ? -errno : 0;
	close(pidfd);
	if (!error)
		*number = status.st_ino;
	return error;
}

/* The same number of this process. */
static int own_number(uint64_t *number)
{
	int pair[2], error;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -errno;
	error = socket_peer_number(pair[0], number);
	close(pair[0]);
	close(pair[1]);
	return error;
}

int wh_meet_bind(const struct wh_crypto *crypto, int socket, bool owner, uint8_t key[WH_KEY_SIZE])
{
	uint8_t ends[24 + 16] = "wherry 2 meet";
	uint8_t bound[WH_KEY_SIZE];
	uint64_t here, there;
	int error;

	if (!socket_has_path(socket, owner))
		return 0;
	error = own_number(&here);
	if (!error)
		error = socket_peer_number(socket, &there);
	if (error)
		return wh_fail(EACCES,
			       "the kernel does not say which process is at the other end "
			       "of the unix socket: %s",
			       strerror(-error));
	wh_put64(wh_put64(ends + 24, owner ? there : here), owner ? here : there);
	error = wh_crypto_hmac(crypto, key, WH_KEY_SIZE, ends, sizeof(ends), bound);
	if (!error)
		memcpy(key, bound, WH_KEY_SIZE);
	explicit_bzero(bound, sizeof(bound));
	return error;
}
