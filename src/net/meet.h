/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where engines of one machine meet that have no network namespace in common, as containers have
 * not: at a unix socket in a folder that both of them mount (setting `meet`).
 *
 * The owner listens as FOLDER/wherry-UID/NAME. WELCOME carries the name, which is random; each side
 * looks into its own folders, because the same volume is mounted at different paths. The directory
 * wherry-UID is this user's, of mode 0700, opened without following links and checked by its
 * descriptor. So the kernel has checked whoever connects by its own numbers of users, which no
 * namespace translates. docs/security.md says what else is proved there.
 */
#ifndef WH_NET_MEET_H
#define WH_NET_MEET_H

#include <stdbool.h>
#include <stdint.h>

#include "util/config.h"
#include "util/error.h"
#include "wire/proof.h"

#define WH_MEET_FOLDERS 4
/* "wherry-" and 32 hexadecimal digits: the name of a socket, in a directory and as an abstract one,
 * and its NUL. */
#define WH_MEET_NAME 40

struct wh_meet_folders {
	unsigned count;
	char path[WH_MEET_FOLDERS][WH_CONFIG_TEXT];
	bool given; /* by the setting; else the defaults, of which any may be missing */
};
/* The folders that the setting `meet` names; "": $XDG_RUNTIME_DIR, /run/wherry and /dev/shm; "off":
 * none. */
void wh_meet_folders(const char *setting, struct wh_meet_folders *out);
/* The folders as text, "/run/wherry, /dev/shm"; cut to fit. */
void wh_meet_text(const struct wh_meet_folders *folders, char *out, size_t size);

/* Is it a name as wh_meet_name() makes it? A name from a peer is nothing but that. */
bool wh_meet_name_valid(const char *name);
/* Make a random name. 0 or -EIO. */
int wh_meet_name(char out[WH_MEET_NAME]);

/* Open this user's directory in a folder; make it there if `make`. Returns a descriptor (O_PATH)
 * that the caller closes, or a negative errno with the reason in `why`: -ENOENT (no such folder, or
 * no directory in it), -EPERM (it is another user's, or others may use it), ... */
int wh_meet_directory(const char *folder, bool make, char why[WH_REFUSAL]);

/* A socket that this engine listens on. */
struct wh_meet {
	int directory; /* -1: none */
	char name[WH_MEET_NAME];
};
/* Listen in a folder under a name, after removing the names of engines that have ended. Returns the
 * socket, which does not block and is the caller's; wh_meet_leave() then removes its name. Or a
 * negative errno with the reason in `why`. */
int wh_meet_listen(const char *folder, const char *name, struct wh_meet *out, char why[WH_REFUSAL]);
void wh_meet_leave(struct wh_meet *meet);
/* Remove the names of engines that have ended from this user's directory. Returns how many. */
unsigned wh_meet_sweep(int directory);

/* Find the socket of that name in one of the folders. Returns a descriptor (O_PATH) of the very
 * socket, which the caller closes; or a negative errno with the reason in `why`: -ENOENT: it is in
 * none of them; -EPERM: what bears the name is no socket of this user. */
int wh_meet_find(const struct wh_meet_folders *folders, const char *name, char why[WH_REFUSAL]);
/* Connect `socket` to what wh_meet_find() has found. Blocks for as long as the socket's own time
 * limit says. 0 or a negative errno. */
int wh_meet_connect(int socket, int found);

/* Bind the key to be proved on a connected unix socket to the two processes at its ends, if they
 * have met by path: what stands in between and passes everything on, descriptors too, is another
 * process. `key` is replaced. Kernels before 6.9 cannot tell processes apart this way; there, and
 * on abstract sockets, which nobody can move, `key` stays as it is or is bound to nothing.
 * 0; -EACCES with a text: the process at the other end has ended; or another negative errno. */
int wh_meet_bind(const struct wh_crypto *crypto, int socket, bool owner, uint8_t key[WH_KEY_SIZE]);

#endif
