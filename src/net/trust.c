/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which key an engine uses: that of the settings, or else this user's own, which is looked for in
 * three directories and made if none has it. And what it may do without a configured key.
 */
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

static int trust_read_configured(struct wh_trust *trust, const char *path)
{
	snprintf(trust->source, sizeof(trust->source), "%s", path);
	return wh_keys_load(path, &trust->keys);
}

/* ---- this user's own key ----------------------------------------------- */

/* Open a directory in which only this user can create or replace files. -1: it is not one. */
static int directory_open_own(const char *path)
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

/* Make a key file. Several processes may do so at once: one wins, and none sees a file that is
 * partly written. The key is written under a temporary name; link(), which never replaces a file,
 * gives it its name. 0 or a negative errno. */
static int directory_make_key(int directory)
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

/* Read the key in a directory; `make` one there if there is none. 0; 1: there is none and none was
 * made; or a negative errno: there is one, but it cannot be used. */
static int directory_key(struct wh_trust *trust, const char *path, bool make)
{
	int directory = *path ? directory_open_own(path) : -1, fd, error = 1;

	if (directory < 0)
		return 1;
	fd = openat(directory, KEY_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT && make && !directory_make_key(directory))
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
	TEMPORARY, /* if neither can be used */
	DIRECTORIES,
};

/* Can only this user create files in the directory? */
static bool directory_is_own(const char *path)
{
	int fd = *path ? directory_open_own(path) : -1;

	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

/* List the directories that may hold this user's key, in the order of search. */
static void trust_list_directories(char path[DIRECTORIES][WH_CONFIG_TEXT + 32])
{
	unsigned user = (unsigned)geteuid();
	struct wh_config_paths table;
	size_t size = sizeof(path[0]);

	wh_config_paths(&table);
	/* Programs that cron starts have no XDG_RUNTIME_DIR, and those that su starts have another
	 * user's: use the standard path then. */
	if (directory_is_own(table.runtime))
		snprintf(path[RUNTIME], size, "%s", table.runtime);
	else
		snprintf(path[RUNTIME], size, "/run/user/%u", user);
	if (*table.cache)
		snprintf(path[CACHE], size, "%s", table.cache);
	else
		snprintf(path[CACHE], size, *table.home ? "%s/.cache" : "%s", table.home);
	snprintf(path[TEMPORARY], size, "/tmp/wherry-%u", user);
}

static int trust_own_key(struct wh_trust *trust)
{
	char path[DIRECTORIES][WH_CONFIG_TEXT + 32];
	int error;

	trust_list_directories(path);
	/* Look everywhere before making one: a process that started before the user logged in had
	 * no runtime directory, and has made the key elsewhere. */
	error = directory_key(trust, path[RUNTIME], false);
	if (error > 0)
		error = directory_key(trust, path[CACHE], false);
	for (int i = RUNTIME; i < DIRECTORIES && error > 0; i++) {
		if (i != RUNTIME && *path[i])
			mkdir(path[i], 0700);
		error = directory_key(trust, path[i], true);
	}
	return error <= 0 ?
		       error :
		       wh_fail(EACCES,
			       "no directory for this user's key: none of $XDG_RUNTIME_DIR, "
			       "$HOME/.cache and %s belongs to this user and is closed to writes "
			       "by others; name a key file, keyfile=FILE (WHERRY_KEYFILE)",
			       path[TEMPORARY]);
}

/* ---- open -------------------------------------------------------------- */

/* Certificates authenticate the engines. The key that the handshake proves is then not secret: it
 * only binds the handshake to the TLS connection (wh_tls_bind()). */
static int trust_use_certificates(struct wh_trust *trust, const struct wh_config *config)
{
	trust->keys.count = 1;
	snprintf(trust->source, sizeof(trust->source), "no key, but the certificate %.180s",
		 config->text[WH_SETTING_TLS_CERT]);
	return 0;
}

/* Get the keys by the settings, and note where they are from. 0 or a negative errno with a text. */
static int trust_get_keys(struct wh_trust *trust, struct wh_config *config)
{
	char *key = config->text[WH_SETTING_KEY];
	const char *path = config->text[WH_SETTING_KEYFILE];
	int error;

	trust->configured = *key || *path || wh_tls_by_certificate(config);
	if (*key && *path)
		error = wh_fail(EINVAL, "the settings key and keyfile are both set: one key is "
					"enough, unset one of them");
	else if (*key)
		error = wh_key_parse(key, trust->keys.key[0]) ?
				0 :
				wh_fail(EINVAL, "the setting key is not a key of 64 hex digits");
	else if (!*path && trust->configured)
		error = trust_use_certificates(trust, config);
	else
		error = *path ? trust_read_configured(trust, path) : trust_own_key(trust);
	if (*key) {
		trust->keys.count = 1;
		snprintf(trust->source, sizeof(trust->source), "the setting key (WHERRY_KEY)");
	}
	explicit_bzero(key, WH_CONFIG_TEXT);
	return error;
}

int wh_trust_open(struct wh_trust *trust, struct wh_config *config)
{
	int error = trust_get_keys(trust, config), refused = trust->configured ? error : 0;

	memcpy(trust->networks, config->text[WH_SETTING_CONNECT_TO], sizeof(trust->networks));
	if (!error)
		error = wh_crypto_open(&trust->crypto, NULL);
	/* Never run without TLS if the setting asks for it: fail at once. */
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

/* Is it the unspecified address, 0.0.0.0 or ::? */
static bool address_is_any(const struct sockaddr_storage *address)
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
	wh_address_format(text, sizeof(text), address);
	if (!listening && *trust->networks && !wh_networks_have(trust->networks, address))
		return wh_fail(EACCES,
			       "connecting to %s: it is in no network of the setting connect_to "
			       "(WHERRY_CONNECT_TO), %.100s",
			       text, trust->networks);
	/* Connecting to the unspecified address reaches this host. */
	if (trust->configured || wh_address_is_loopback(address) ||
	    (!listening && address_is_any(address)))
		return 0;
	return wh_fail(EACCES,
		       "%s %s, beyond this host, needs a cluster key: " WH_KEY_HOW_TO
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
		"the peer belongs to user %u; without a cluster key, engines of user %u connect "
		"to each other only: name one key for both with the setting keyfile",
		(unsigned)user, (unsigned)geteuid());
}
