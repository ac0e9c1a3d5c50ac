/* SPDX-License-Identifier: Apache-2.0 */
/* The key that an engine proves, and demands of others: where it comes from. docs/security.md. */
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
	bool configured; /* by a setting; else it is this user's own, and good on this host alone */
	/* where it is from, for texts: "/run/user/7/wherry.key" */
	char source[WH_CONFIG_TEXT + 48];
	int error; /* there is no key, negative, for the reason in `text` */
	char text[WH_TEXT_MAX];
};

/* Have the keys that the settings name, or this user's own, made if there is none yet; the setting
 * `key` is wiped. With certificates no key is needed. 0; or -EACCES (not the user's alone), -EINVAL
 * (no key in the file) or another errno of the file that a setting names, or of what the setting
 * tls takes. What is wrong otherwise, such as that there is no OpenSSL, is kept for
 * wh_trust_allows(): an engine that neither listens nor connects does without. With an error the
 * structure is to be closed as well. */
int wh_trust_open(struct wh_trust *trust, struct wh_config *config);
void wh_trust_close(struct wh_trust *trust);

/* May this address be listened on, or connected to? 0; -EACCES: it is not of this host's loopback,
 * and no key is configured; or why there is no key, or no way to prove it. */
int wh_trust_allows(const struct wh_trust *trust, const struct sockaddr_storage *address,
		    bool listening);
/* Without a key that is configured: is the other end of this connection another user's? He has no
 * key, but could hand on what two engines of this user prove to each other. 0 or -EACCES. Where the
 * kernel does not tell, the proof has to do. */
int wh_trust_check_user(const struct wh_trust *trust, int fd);

#endif
