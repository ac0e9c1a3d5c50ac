/* SPDX-License-Identifier: Apache-2.0 */
/* The log of wherry registry: a sequence of entries, each with length and checksum, so that a torn
 * end is detected. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry/registry.h"
#include "wire/bytes.h"

/* ---- entries --------------------------------------------------------------------------------- */

/* CRC-32 of IEEE 802.3. */
uint32_t log_checksum(const uint8_t *bytes, size_t length)
{
	uint32_t sum = 0xffffffff;

	for (size_t i = 0; i < length; i++) {
		sum ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
	}
	return ~sum;
}

size_t log_entry_size(const struct log_entry *entry)
{
	return LOG_HEADER + LOG_FIXED + entry->key_length + entry->owner_length +
	       entry->value_length;
}

void log_entry_encode(const struct log_entry *entry, uint8_t *out)
{
	uint8_t *payload = out + LOG_HEADER, *at = payload + LOG_FIXED;
	size_t length = log_entry_size(entry) - LOG_HEADER;

	wh_put32(payload, entry->put);
	wh_put32(payload + 4, (uint32_t)entry->key_length);
	wh_put32(payload + 8, (uint32_t)entry->owner_length);
	wh_put32(payload + 12, (uint32_t)entry->value_length);
	wh_put32(payload + 16, entry->lease);
	if (entry->key_length)
		memcpy(at, entry->key, entry->key_length);
	at += entry->key_length;
	if (entry->owner_length)
		memcpy(at, entry->owner, entry->owner_length);
	at += entry->owner_length;
	if (entry->value_length)
		memcpy(at, entry->value, entry->value_length);
	wh_put32(out, (uint32_t)length);
	wh_put32(out + 4, log_checksum(payload, length));
}

size_t log_entry_decode(const uint8_t *bytes, size_t length, struct log_entry *out)
{
	const uint8_t *payload = bytes + LOG_HEADER;
	struct log_entry entry = { .put = false };
	uint32_t size;

	if (length < LOG_HEADER + LOG_FIXED)
		return 0;
	size = wh_get32(bytes);
	if (size < LOG_FIXED || size > LOG_PAYLOAD_MAX || size > length - LOG_HEADER ||
	    log_checksum(payload, size) != wh_get32(bytes + 4))
		return 0;
	entry.put = wh_get32(payload) == 1;
	entry.key_length = wh_get32(payload + 4);
	entry.owner_length = wh_get32(payload + 8);
	entry.value_length = wh_get32(payload + 12);
	entry.lease = wh_get32(payload + 16);
	/* Check each length before the sum, which could wrap. */
	if (wh_get32(payload) > 1 || !entry.key_length || entry.key_length > REGISTRY_KEY_MAX ||
	    entry.owner_length > REGISTRY_OWNER_MAX || entry.value_length > REGISTRY_VALUE_MAX ||
	    entry.lease > REGISTRY_LEASE_MOST ||
	    LOG_FIXED + entry.key_length + entry.owner_length + entry.value_length != size)
		return 0;
	entry.key = (const char *)payload + LOG_FIXED;
	entry.owner = entry.key + entry.key_length;
	entry.value = entry.owner + entry.owner_length;
	if (memchr(entry.key, 0, entry.key_length) || memchr(entry.owner, 0, entry.owner_length))
		return 0;
	*out = entry;
	return LOG_HEADER + size;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int file_write_all(int fd, const void *bytes, size_t length)
{
	const char *at = bytes;

	while (length) {
		ssize_t put = write(fd, at, length);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return -errno;
		at += put;
		length -= (size_t)put;
	}
	return 0;
}

/* Save the damaged end in PATH.damaged for inspection. */
static int log_set_aside(struct log *log, const uint8_t *bytes, size_t length)
{
	char path[PATH_MAX];
	int fd, error;

	if ((size_t)snprintf(path, sizeof(path), "%s.damaged", log->path) >= sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	error = file_write_all(fd, bytes, length);
	close(fd);
	return error;
}

static int log_replay(struct log *log, const uint8_t *bytes, size_t length,
		      void (*each)(void *arg, const struct log_entry *entry), void *arg,
		      const struct log_watch *watch, uint64_t *lost)
{
	size_t magic = strlen(LOG_MAGIC), at = magic, took;
	struct log_entry entry;
	int error = 0;

	/* Refuse a file that is not a log. A part of the magic is a log that was cut off. */
	if (memcmp(bytes, LOG_MAGIC, length < magic ? length : magic))
		return -EINVAL;
	if (length < magic)
		at = 0;
	else
		for (; at < length && (took = log_entry_decode(bytes + at, length - at, &entry));
		     at += took) {
			each(arg, &entry);
			if (watch)
				watch->moved(watch->arg, at + took, length);
		}
	*lost = length - at;
	if (at < length && at)
		error = log_set_aside(log, bytes + at, length - at);
	if (!error && at < length && ftruncate(log->fd, (off_t)at))
		error = -errno;
	log->length = at;
	return error;
}

static int log_load(struct log *log, void (*each)(void *arg, const struct log_entry *entry),
		    void *arg, const struct log_watch *watch, uint64_t *lost)
{
	struct stat file;
	uint8_t *bytes;
	int error;

	if (fstat(log->fd, &file))
		return -errno;
	if (!S_ISREG(file.st_mode))
		return -EINVAL;
	if (!file.st_size)
		return 0;
	bytes = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, log->fd, 0);
	if (bytes == MAP_FAILED)
		return -errno;
	error = log_replay(log, bytes, (size_t)file.st_size, each, arg, watch, lost);
	munmap(bytes, (size_t)file.st_size);
	return error;
}

static int log_open_directory(const char *path)
{
	char copy[PATH_MAX];
	int fd;

	if ((size_t)snprintf(copy, sizeof(copy), "%s", path) >= sizeof(copy))
		return -ENAMETOOLONG;
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int log_open(struct log *log, const char *path,
	     void (*each)(void *arg, const struct log_entry *entry), void *arg,
	     const struct log_watch *watch, uint64_t *lost)
{
	int error = 0;

	*lost = 0;
	*log = (struct log){ .path = path, .fd = -1 };
	log->directory = log_open_directory(path);
	if (log->directory < 0)
		return log->directory;
	log->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (log->fd < 0 || flock(log->fd, LOCK_EX | LOCK_NB))
		error = -errno;
	if (!error)
		error = log_load(log, each, arg, watch, lost);
	if (!error && !log->length) {
		error = file_write_all(log->fd, LOG_MAGIC, strlen(LOG_MAGIC));
		log->length = strlen(LOG_MAGIC);
	}
	if (!error && (fdatasync(log->fd) || fsync(log->directory)))
		error = -errno;
	if (error)
		log_close(log);
	return error;
}

void log_close(struct log *log)
{
	if (log->fd >= 0)
		close(log->fd);
	if (log->directory >= 0)
		close(log->directory);
	log->fd = log->directory = -1;
}

int log_append(struct log *log, const struct log_entry *entry, bool sync)
{
	size_t size = log_entry_size(entry);
	uint8_t *bytes;
	int error;

	if (log->fd < 0)
		return 0;
	if (log->broken)
		return -EIO;
	bytes = malloc(size);
	if (!bytes)
		return -ENOMEM;
	log_entry_encode(entry, bytes);
	error = file_write_all(log->fd, bytes, size);
	free(bytes);
	if (!error && sync && fdatasync(log->fd))
		error = -errno;
	if (!error) {
		log->length += size;
		return 0;
	}
	/* Half an entry would hide all entries after it. */
	log->broken = ftruncate(log->fd, (off_t)log->length) != 0;
	return error;
}

int log_rewrite(struct log *log, const struct log_entry *(*next)(void *arg), void *arg)
{
	struct log fresh = { .directory = -1 };
	const struct log_entry *entry;
	char path[PATH_MAX];
	int error;

	if ((size_t)snprintf(path, sizeof(path), "%s.new", log->path) >= sizeof(path))
		return -ENAMETOOLONG;
	fresh.fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
	if (fresh.fd < 0)
		return -errno;
	fresh.length = strlen(LOG_MAGIC);
	error = flock(fresh.fd, LOCK_EX | LOCK_NB) ?
			-errno :
			file_write_all(fresh.fd, LOG_MAGIC, fresh.length);
	while (!error && (entry = next(arg)))
		error = log_append(&fresh, entry, false);
	if (!error && (fdatasync(fresh.fd) || rename(path, log->path)))
		error = -errno;
	if (error) {
		close(fresh.fd);
		unlink(path);
		return error;
	}
	/* Until this succeeds a power cut may bring the old log back, without later entries. So
	 * nothing is accepted before. */
	error = fsync(log->directory) ? -errno : 0;
	close(log->fd);
	log->fd = fresh.fd;
	log->length = fresh.length;
	log->broken = error != 0;
	return error;
}
