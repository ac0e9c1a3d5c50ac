/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Key files: parsed, read with a check of owner and mode, and made. Buffers that held a key are
 * wiped. Paths and line numbers appear in error texts, keys never do.
 */
#include "net/keyfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/error.h"

#define DIGITS (2 * WH_KEY_SIZE)
#define FILE_MAX 2048 /* bytes of a key file, at most */
#define SPACE " \t\r\n"

/* ---- text -------------------------------------------------------------- */

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool wh_key_parse(const char *text, uint8_t key[WH_KEY_SIZE])
{
	for (size_t i = 0; i < DIGITS; i += 2) {
		int high = hex_digit(text[i]), low = high < 0 ? -1 : hex_digit(text[i + 1]);

		if (low < 0)
			return false;
		key[i / 2] = (uint8_t)(high << 4 | low);
	}
	return !text[DIGITS + strspn(text + DIGITS, SPACE)];
}

int wh_keys_parse(char *text, const char *path, struct wh_keys *keys)
{
	unsigned number = 0;
	char *line;

	keys->count = 0;
	while ((line = strsep(&text, "\n"))) {
		number++;
		if (*line == '#' || !line[strspn(line, SPACE)])
			continue;
		if (keys->count == WH_KEYS_MAX)
			return wh_fail(EINVAL,
				       "the key file %.100s: line %u holds one key too many; at "
				       "most %d are allowed",
				       path, number, WH_KEYS_MAX);
		if (!wh_key_parse(line, keys->key[keys->count]))
			return wh_fail(EINVAL,
				       "the key file %.100s: line %u is no key of 64 hex digits; "
				       "make one: " WH_KEY_HOW_TO,
				       path, number);
		keys->count++;
	}
	return keys->count ? 0 :
			     wh_fail(EINVAL,
				     "the key file %.100s holds no key of 64 hex digits; make "
				     "one: " WH_KEY_HOW_TO,
				     path);
}

/* ---- reading ----------------------------------------------------------- */

static int keyfile_check(int fd, const char *path)
{
	struct stat file;

	if (fstat(fd, &file))
		return wh_fail(errno, "the key file %.150s: %s", path, strerror(errno));
	if (!S_ISREG(file.st_mode))
		return wh_fail(EINVAL, "the key file %.150s is not a regular file", path);
	if (file.st_uid != geteuid())
		return wh_fail(
			EACCES,
			"the key file %.120s belongs to user %u, but this process runs as user "
			"%u, who must own the file",
			path, (unsigned)file.st_uid, (unsigned)geteuid());
	if (file.st_mode & 077)
		return wh_fail(
			EACCES,
			"the key file %.90s is accessible to other users (mode %03o): chmod 600 "
			"it, and make a new key if others may have read it",
			path, file.st_mode & 0777u);
	return 0;
}

int wh_keys_read(int fd, const char *path, struct wh_keys *keys)
{
	char text[FILE_MAX] = "";
	int error = keyfile_check(fd, path);
	ssize_t got;

	if (error)
		return error;
	got = read(fd, text, sizeof(text) - 1);
	if (got < 0)
		return wh_fail(errno, "the key file %.150s: read: %s", path, strerror(errno));
	if (got == (ssize_t)sizeof(text) - 1 || strlen(text) != (size_t)got)
		error = wh_fail(EINVAL,
				"the key file %.100s holds no key of 64 hex digits: it is longer "
				"than %d bytes, or not text",
				path, FILE_MAX - 2);
	else
		error = wh_keys_parse(text, path, keys);
	explicit_bzero(text, sizeof(text));
	if (error)
		explicit_bzero(keys, sizeof(*keys));
	return error;
}

int wh_keys_load(const char *path, struct wh_keys *keys)
{
	/* O_NONBLOCK: opening a fifo must not block. Symbolic links are followed: containers
	 * mount secrets that way. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), error;

	if (fd < 0)
		return wh_fail(errno, "the key file %.100s: %s; make one: " WH_KEY_HOW_TO, path,
			       strerror(errno));
	error = wh_keys_read(fd, path, keys);
	close(fd);
	return error;
}

/* ---- making ------------------------------------------------------------ */

static void hex_print(char *out, const uint8_t *bytes, size_t length)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < length; i++) {
		out[2 * i] = digits[bytes[i] >> 4];
		out[2 * i + 1] = digits[bytes[i] & 15];
	}
}

int wh_key_write(int fd)
{
	uint8_t key[WH_KEY_SIZE];
	char text[DIGITS + 1];
	int error = 0;

	if (getrandom(key, sizeof(key), 0) != sizeof(key))
		return -EIO;
	hex_print(text, key, sizeof(key));
	text[DIGITS] = '\n';
	errno = ENOSPC;
	if (write(fd, text, sizeof(text)) != sizeof(text))
		error = -errno;
	explicit_bzero(key, sizeof(key));
	explicit_bzero(text, sizeof(text));
	return error;
}

int wh_key_make(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600), error;

	if (fd < 0)
		return wh_fail(errno, "%.150s: %s%s", path, strerror(errno),
			       errno == EEXIST ? "; the file is left as it is" : "");
	error = wh_key_write(fd);
	if (!error && (fchmod(fd, 0600) || fsync(fd)))
		error = -errno;
	close(fd);
	if (!error)
		return 0;
	unlink(path);
	return wh_fail(-error, "%.150s: %s", path, strerror(-error));
}

int wh_key_fingerprint(const struct wh_crypto *crypto, const uint8_t key[WH_KEY_SIZE],
		       char out[WH_FINGERPRINT])
{
	static const char label[] = "wherry key fingerprint";
	uint8_t mac[WH_MAC_SIZE];
	int error = wh_crypto_hmac(crypto, key, WH_KEY_SIZE, label, sizeof(label) - 1, mac);

	if (error)
		return error;
	hex_print(out, mac, WH_FINGERPRINT / 2);
	out[WH_FINGERPRINT - 1] = '\0';
	return 0;
}
