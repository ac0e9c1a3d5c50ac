/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading /sys, /proc and /dev: of this machine, or of another one as a tree of files in a folder.
 * What is read can be copied into such a folder at the same time, which makes it a recording that
 * holds just what is needed to read the same again.
 *
 * Paths start with a '/'. Functions return a negative errno without a text: most of what is looked
 * for may well be absent, and only the caller knows whether that matters.
 */
#ifndef WH_TOPOLOGY_TREE_H
#define WH_TOPOLOGY_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WH_TREE_PATH 512

struct wh_tree {
	const char *root; /* put in front of every path; "": this machine */
	const char *record; /* a folder to copy into; NULL: none */
};

/* Is it this machine that is read? */
static inline bool wh_tree_is_live(const struct wh_tree *tree)
{
	return !*tree->root;
}

/* Up to size - 1 bytes of a file, and a 0 behind them. How many there were, or a negative errno. */
int wh_tree_read(const struct wh_tree *tree, const char *path, char *out, size_t size);

/* The first line of FOLDER/FILE without its end. 0 or a negative errno. */
int wh_tree_line(const struct wh_tree *tree, const char *folder, const char *file, char *out,
		 size_t size);

/* The number at the start of FOLDER/FILE, decimal or with 0x. 0 or a negative errno; -EINVAL if
 * there is none. */
int wh_tree_number(const struct wh_tree *tree, const char *folder, const char *file, int64_t *out);

/* Where a symbolic link leads, as it is written. 0 or a negative errno. */
int wh_tree_link(const struct wh_tree *tree, const char *path, char *out, size_t size);

/* Is something there? 0 or a negative errno. */
int wh_tree_exists(const struct wh_tree *tree, const char *path);

/* Can it be opened (for reading and writing)? 0 or a negative errno. */
int wh_tree_open(const struct wh_tree *tree, const char *path, bool write);

/* The major number, as *out, of a character device; in a recorded tree it is a file that says "char
 * MAJOR". 0 or a negative errno; -EINVAL: something else is there. */
int wh_tree_device(const struct wh_tree *tree, const char *path, int *out);

/* The names in a folder, sorted as numbers where they end in numbers; free with
 * wh_tree_names_free(). *out is an empty list on error. 0 or a negative errno. */
struct wh_tree_names {
	char **name;
	size_t count;
};
int wh_tree_list(const struct wh_tree *tree, const char *path, struct wh_tree_names *out);
void wh_tree_names_free(struct wh_tree_names *names);

#endif
