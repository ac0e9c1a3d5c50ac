/* SPDX-License-Identifier: Apache-2.0 */
#include "net/trust.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/tls.h"
#include "platform/owner.h"
#include "rendezvous/rendezvous.h"

#define KEY_NAME "wherry.key"

static int read_configured(struct wh_trust *trust, const char *path)
{
	snprintf(trust->source, sizeof(trust->source), "%s", path);
	return wh_keys_load(path, &trust->keys);
}

/* ---- this user's own key -------------------------------------------------------------------- */

/* A directory in which nobody but this user can make or replace files; -1: it is none. */
static int open_own(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat directory;

	if (fd < 0)
		return -1;
	if (!fstat(fd, &directory) && directory.st_uid == geteuid() && !(directory.st_mode & 022))
		return fd;
	close(fd);
	return -1;
}

/* Of several processes that make it at once one wins, and nobody ever sees a part of it: it is
 * written under another name, and gets its own by link(), which replaces nothing. */
static int make_key(int directory)
{
	char name[64];
	uint64_t number;
	int fd, error;

	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return -EIO;
	snprintf(name, sizeof(name), "." KEY_NAME ".%016llx", (unsigned long long)number);
	fd = openat(directory, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	error = wh_key_write(fd);
	if (!error && linkat(directory, name, directory, KEY_NAME, 0) && errno != EEXIST)
		error = -errno;
	close(fd);
	unlinkat(directory, name, 0);
	return error;
}

/* 0; 1: there is none here, and none was made; or a negative errno: there is, and something is
 * wrong with it. */
static int own_key_in(struct wh_trust *trust, const char *path, bool make)
{
	int directory = *path ? open_own(path) : -1, fd, error = 1;

	if (directory < 0)
		return 1;
	fd = openat(directory, KEY_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT && make && !make_key(directory))
		fd = openat(directory, KEY_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0) {
		snprintf(trust->source, sizeof(trust->source), "%s/" KEY_NAME, path);
		error = wh_keys_read(fd, trust->source, &trust->keys);
		close(fd);
	} else if (errno != ENOENT && !make) {
		error = wh_fail(errno, "the key file %.140s/" KEY_NAME ": %s", path,
				strerror(errno));
	}
	close(directory);
	return error;
}

enum {
	RUNTIME,
	CACHE,
	LAST, /* where there is neither */
	PLACES,
};

static bool is_own(const char *path)
{
	int fd = *path ? open_own(path) : -1;

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static void list_places(char path[PLACES][WH_CONFIG_TEXT + 32])
{
	unsigned user = (unsigned)geteuid();
	struct wh_config_paths table;
	size_t size = sizeof(path[0]);

	wh_config_paths(&table);
	/* Where it is by rule: what cron starts has no variable, what su starts another user's. */
	if (is_own(table.runtime))
		snprintf(path[RUNTIME], size, "%s", table.runtime);
	else
		snprintf(path[RUNTIME], size, "/run/user/%u", user);
	if (*table.cache)
		snprintf(path[CACHE], size, "%s", table.cache);
	else
		snprintf(path[CACHE], size, *table.home ? "%s/.cache" : "%s", table.home);
	snprintf(path[LAST], size, "/tmp/wherry-%u", user);
}

static int own_key(struct wh_trust *trust)
{
	char path[PLACES][WH_CONFIG_TEXT + 32];
	int error;

	list_places(path);
	/* What was started before the user logged in has made one where there was a place. */
	error = own_key_in(trust, path[RUNTIME], false);
	if (error > 0)
		error = own_key_in(trust, path[CACHE], false);
	for (int i = RUNTIME; i < PLACES && error > 0; i++) {
		if (i != RUNTIME && *path[i])
			mkdir(path[i], 0700);
		error = own_key_in(trust, path[i], true);
	}
	return error <= 0 ?
		       error :
		       wh_fail(EACCES,
			       "no directory for this user's key ($XDG_RUNTIME_DIR, $HOME/.cache, "
			       "%s: its own, and not writable to others): name a key file, "
			       "keyfile=FILE (WHERRY_KEYFILE)",
			       path[LAST]);
}

/* ---- open ----------------------------------------------------------------------------------- */

/* The certificates prove who is who. The key that is proved then is nothing but what ties the
 * proofs to the connection: wh_tls_bind(). */
static int no_key(struct wh_trust *trust, const struct wh_config *config)
{
	trust->keys.count = 1;
	snprintf(trust->source, sizeof(trust->source), "none, but certificates (%.180s)",
		 config->text[WH_SETTING_TLS_CERT]);
	return 0;
}

static int have_key(struct wh_trust *trust, struct wh_config *config)
{
	char *key = config->text[WH_SETTING_KEY];
	const char *path = config->text[WH_SETTING_KEYFILE];
	int error;

	trust->configured = *key || *path || wh_tls_by_certificate(config);
	if (*key && *path)
		error = wh_fail(EINVAL, "both settings key and keyfile are set: one key is enough");
	else if (*key)
		error = wh_key_parse(key, trust->keys.key[0]) ?
				0 :
				wh_fail(EINVAL, "the setting key holds no key");
	else if (!*path && trust->configured)
		error = no_key(trust, config);
	else
		error = *path ? read_configured(trust, path) : own_key(trust);
	if (*key) {
		trust->keys.count = 1;
		snprintf(trust->source, sizeof(trust->source), "the setting key (WHERRY_KEY)");
	}
	explicit_bzero(key, WH_CONFIG_TEXT);
	return error;
}

int wh_trust_open(struct wh_trust *trust, struct wh_config *config)
{
	int error = have_key(trust, config), refused = trust->configured ? error : 0;

	if (!error)
		error = wh_crypto_open(&trust->crypto, NULL);
	/* Who wants it does not want to do without. */
	if (!error && config->number[WH_SETTING_TLS])
		refused = error = wh_tls_open(config, &trust->crypto, &trust->keys, &trust->tls);
	trust->error = error;
	if (error)
		snprintf(trust->text, sizeof(trust->text), "%s", wh_fail_text());
	return refused;
}

void wh_trust_close(struct wh_trust *trust)
{
	wh_tls_close(trust->tls);
	trust->tls = NULL;
	wh_crypto_close(&trust->crypto);
	explicit_bzero(&trust->keys, sizeof(trust->keys));
}

static bool is_any(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

	return address->ss_family == AF_INET ? !v4->sin_addr.s_addr :
					       IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr);
}

int wh_trust_allows(const struct wh_trust *trust, const struct sockaddr_storage *address,
		    bool listening)
{
	char text[64];

	if (trust->error)
		return wh_fail(-trust->error, "%s", trust->text);
	/* To connect to no address at all is to connect to this host. */
	if (trust->configured || wh_address_is_loopback(address) || (!listening && is_any(address)))
		return 0;
	wh_address_format(text, sizeof(text), address);
	return wh_fail(EACCES,
		       "%s %s, which is more than this host, takes a cluster key: " WH_KEY_HOW_TO
		       ", the same FILE on all hosts, and its name in the setting keyfile "
		       "(WHERRY_KEYFILE)",
		       listening ? "listening on" : "connecting to", text);
}

int wh_trust_check_user(const struct wh_trust *trust, int fd)
{
	uid_t user;

	if (trust->configured || wh_socket_owner(fd, &user) || user == geteuid() || user == 0)
		return 0;
	return wh_fail(
		EACCES,
		"the other end is user %u's, and without a cluster key engines of user %u talk "
		"to each other alone: the setting keyfile names one for both",
		(unsigned)user, (unsigned)geteuid());
}
