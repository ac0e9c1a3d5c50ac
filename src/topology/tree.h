/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading /sys, /proc and /dev: of this machine, or of another one recorded as files in a folder.
 * The functions can record into such a folder while they read; the recording then has exactly the
 * files that were read.
 *
 * Paths start with a '/'. Functions return a negative errno and set no error text: files are often
 * absent, and only the caller knows whether that matters.
 */
#ifndef WH_TOPOLOGY_TREE_H
#define WH_TOPOLOGY_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_TREE_PATH 512

struct wh_tree {
	const char *root; /* prefix of every path; "": this machine */
	const char *record; /* the folder to record into; NULL: none */
};

/* Does the tree read this machine? */
static inline bool wh_tree_is_live(const struct wh_tree *tree)
{
	return !*tree->root;
}

/* Read up to size - 1 bytes of a file and add a NUL. The number of bytes, or a negative errno. */
int wh_tree_read(const struct wh_tree *tree, const char *path, char *out, size_t size);

/* The first line of FOLDER/FILE without its newline, cleaned for terminals. 0 or a negative
 * errno. */
int wh_tree_line(const struct wh_tree *tree, const char *folder, const char *file, char *out,
		 size_t size);

/* The number at the start of FOLDER/FILE, decimal or with 0x. 0 or a negative errno; -EINVAL: no
 * number. */
int wh_tree_number(const struct wh_tree *tree, const char *folder, const char *file, int64_t *out);

/* The target of a symbolic link, as written in the link. 0 or a negative errno. */
int wh_tree_link(const struct wh_tree *tree, const char *path, char *out, size_t size);

/* Does the path exist? 0 or a negative errno. */
int wh_tree_exists(const struct wh_tree *tree, const char *path);

/* Can the file be opened for reading (`write`: and writing)? 0 or a negative errno. */
int wh_tree_open(const struct wh_tree *tree, const char *path, bool write);

/* The major number of a character device; a recorded device is a file with the text "char MAJOR". 0
 * or a negative errno; -EINVAL: not a character device. */
int wh_tree_device(const struct wh_tree *tree, const char *path, int *out);

/* The names in a folder, sorted, numbers within them by value. Free them with wh_tree_names_free();
 * *out is an empty list on error. 0 or a negative errno. */
struct wh_tree_names {
	char **name;
	size_t count;
};
int wh_tree_list(const struct wh_tree *tree, const char *path, struct wh_tree_names *out);
void wh_tree_names_free(struct wh_tree_names *names);

#endif
