/* SPDX-License-Identifier: Apache-2.0 */
/* Files with cluster keys: docs/security.md. */
#ifndef WH_NET_KEYFILE_H
#define WH_NET_KEYFILE_H

#include <stddef.h>

#include "wire/proof.h"

#define WH_KEYS_MAX 8
#define WH_FINGERPRINT 17 /* 16 hex digits and a NUL */
#define WH_KEY_HOW_TO "wherry key make FILE"

/* The first is proved, all are accepted. */
struct wh_keys {
	uint8_t key[WH_KEYS_MAX][WH_KEY_SIZE];
	unsigned count;
};

/* 64 hex digits, and nothing behind them but white space: a setting's, or a line of a file. */
bool wh_key_parse(const char *text, uint8_t key[WH_KEY_SIZE]);

/* The keys in the text of a file that is `path` in texts; the text is cut up. 0 or -EINVAL. */
int wh_keys_parse(char *text, const char *path, struct wh_keys *keys);
/* The keys in an open file that is `path` in texts: one on each line, empty lines and those that
 * begin with # aside. 0; -EACCES: it is not this user's alone; -EINVAL: no regular file, or what is
 * in it; or an errno of the file. */
int wh_keys_read(int fd, const char *path, struct wh_keys *keys);
int wh_keys_load(const char *path, struct wh_keys *keys);

/* Write a new key to an open file. 0 or a negative errno. */
int wh_key_write(int fd);
/* Make a file with a new key, of mode 0600. 0; -EEXIST: there is one; or another errno, with a
 * text. */
int wh_key_make(const char *path);

/* What a key is called: it tells nothing of the key. 0 or -EIO. */
int wh_key_fingerprint(const struct wh_crypto *crypto, const uint8_t key[WH_KEY_SIZE],
		       char out[WH_FINGERPRINT]);

#endif
