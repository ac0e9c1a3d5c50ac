/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cluster keys, and the files that hold them: one key a line, 64 hex digits. docs/security.md.
 */
#ifndef WH_NET_KEYFILE_H
#define WH_NET_KEYFILE_H

#include <stddef.h>

#include "wire/proof.h"

#define WH_KEYS_MAX 8
#define WH_FINGERPRINT 17 /* 16 hex digits and a NUL */
#define WH_KEY_HOW_TO "wherry key make FILE"

/* An engine proves the first key and accepts all of them. */
struct wh_keys {
	uint8_t key[WH_KEYS_MAX][WH_KEY_SIZE];
	unsigned count;
};

/* Parse a key: 64 hex digits, then white space only. The text ends with NUL. */
bool wh_key_parse(const char *text, uint8_t key[WH_KEY_SIZE]);

/* Parse the text of a key file. The text is modified; error texts name the file `path`. 0 or
 * -EINVAL. */
int wh_keys_parse(char *text, const char *path, struct wh_keys *keys);
/* Read the keys in an open file: one on each line, except empty lines and lines that begin with #.
 * Error texts name the file `path`. 0; -EACCES: another user owns it or may access it; -EINVAL: not
 * a regular file, or not keys; or an errno of the file. The caller wipes *keys. */
int wh_keys_read(int fd, const char *path, struct wh_keys *keys);
/* The same for the file of that path. */
int wh_keys_load(const char *path, struct wh_keys *keys);

/* Write a new key to an open file. 0 or a negative errno. */
int wh_key_write(int fd);
/* Make a file of mode 0600 with a new key. 0; or a negative errno with a text: -EEXIST, if the file
 * exists; it is not changed. */
int wh_key_make(const char *path);

/* A short name for a key, which does not reveal it: the start of an HMAC. 0 or -EIO. */
int wh_key_fingerprint(const struct wh_crypto *crypto, const uint8_t key[WH_KEY_SIZE],
		       char out[WH_FINGERPRINT]);

#endif
