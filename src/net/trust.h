/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys that an engine proves and accepts, where they come from, and what it may do with them.
 * docs/security.md.
 */
#ifndef WH_NET_TRUST_H
#define WH_NET_TRUST_H

#include <stdbool.h>

#include <netinet/in.h>

#include "net/keyfile.h"
#include "util/config.h"
#include "util/error.h"

struct wh_tls_context;

struct wh_trust {
	struct wh_crypto crypto;
	struct wh_tls_context *tls; /* NULL: the setting is off */
	struct wh_keys keys;
	bool configured; /* by a setting; else the key is this user's own, for this host only */
	/* where the keys are from, for texts: "/run/user/7/wherry.key" */
	char source[WH_CONFIG_TEXT + 48];
	char networks[WH_CONFIG_TEXT]; /* the setting connect_to */
	int error; /* negative errno: there is no key, or no way to prove it; `text` says why */
	char text[WH_TEXT_MAX];
};

/* Read the keys that the settings name, or this user's own key, which is made if there is none;
 * wipe the setting `key`; set up TLS if its setting is on. With certificates no key is needed. 0,
 * or a negative errno with a text if what the settings name cannot be used: -EACCES (a key file
 * that others may access), -EINVAL (no key in it), an errno of the file, or those of wh_tls_open().
 * Other errors, such as a missing OpenSSL, are kept for wh_trust_allows(): an engine that neither
 * listens nor connects needs no key. The caller closes the structure in every case. */
int wh_trust_open(struct wh_trust *trust, struct wh_config *config);
void wh_trust_close(struct wh_trust *trust);

/* May the engine listen on the address, or connect to it? 0; -EACCES: the address is not loopback,
 * and no key is configured, or it is in none of the networks to connect to; or the error why there
 * is no key, or no way to prove it. */
int wh_trust_allows(const struct wh_trust *trust, const struct sockaddr_storage *address,
		    bool listening);
/* Without a configured key, does the other end of the connection belong to this user, or to root?
 * Another user has no key, but could relay the proofs of two engines of this user. 0, also if the
 * kernel does not report the user, as the proof still protects; or -EACCES. */
int wh_trust_check_user(const struct wh_trust *trust, int fd);

#endif
