/* SPDX-License-Identifier: Apache-2.0 */
/* wherry copy from and to a directory of a server: the client of its protocol (dir.c), one end of
 * the copy, here or there (side.c), and the copy (tree.c). */
#ifndef TOOLS_COPY_TREE_H
#define TOOLS_COPY_TREE_H

#include <stdbool.h>
#include <stdint.h>

#include <wherry/wherry.h>

#include "command.h"
#include "copy/copy.h"
#include "dir/message.h"
#include "url.h"

/* Each function returns 0, or an exit code after a line on stderr, if nothing else is said. */

/* ---- the client ------------------------------------------------------------------------------ */

struct dir_client {
	struct wh_engine *engine;
	struct wh_peer *peer;
	struct wh_batch *batch;
	const char *name; /* as on the command line */
	uint64_t directory;
	bool writable;
};

struct dir_answer {
	uint8_t *data;
	struct dir_message message;
};

/* Call dir_client_close() even on failure. */
int dir_client_open(struct dir_client *client, struct wh_engine *engine, const struct url *url,
		    bool quiet);
int dir_client_close(struct dir_client *client, int code);

/* Ask, and wait for the answer, which has `count` items unless the request is DIR_LIST. Items have
 * their own errors. Free it with dir_answer_free(). */
int dir_ask(struct dir_client *client, enum dir_op op, const struct dir_item *items, size_t count,
	    struct dir_answer *out);
void dir_answer_free(struct dir_answer *answer);

/* Tell without an answer; errors show in the next question. */
void dir_tell(struct dir_client *client, enum dir_op op, const struct dir_item *items,
	      size_t count);

/* Is the region the head of a directory? Then *flags and *directory are set. */
bool dir_head_is(struct wh_engine *engine, struct wh_peer *peer, const struct wh_remote *remote,
		 uint32_t *flags, uint64_t *directory);

/* ---- one end --------------------------------------------------------------------------------- */

/* A name below the end's root. */
struct tree_entry {
	char *path; /* from the root */
	uint32_t mode;
	uint64_t length;
	int64_t mtime;
};

struct tree_list {
	struct tree_entry *entries;
	size_t count, room;
};

/* An open file. */
struct tree_file {
	const char *path;
	int fd; /* of this host; -1 */
	uint64_t handle; /* of a server; 0 */
	struct wh_region *region; /* of the file here */
	struct wh_remote remote; /* of the file there */
	uint32_t mode;
	uint64_t length;
	int64_t mtime;
	bool kept; /* what an earlier attempt has left is in it */
	int error; /* 0, or the negative errno with which it was not opened */
	struct dir_extent *extents;
	size_t extent_count;
};

struct side {
	struct wh_engine *engine;
	const char *name; /* as on the command line */
	bool remote;
	int root; /* of this host */
	char base[DIR_PATH_MAX + 1]; /* below the root; "": the root itself */
	struct dir_client client;
};

#define TREE_GROUP 32 /* files that are open at once */

/* Find the directory, and in it the base: a path of this host or wherry://HOST:PORT/NAME[/PATH].
 * `create`: a target, whose base may be missing. Call side_close() even on failure. */
int side_open(struct side *side, struct wh_engine *engine, const char *text, bool create,
	      bool quiet);
int side_close(struct side *side, int code);

/* What is at the base; mode 0: nothing. */
int side_stat(struct side *side, struct tree_entry *out);
/* What the base holds, or all that is below it, sorted. tree_list_free() it, also on failure. */
int side_list(struct side *side, bool all, struct tree_list *out);
int tree_list_add(struct tree_list *list, const char *path, size_t length,
		  const struct dir_item *about);
void tree_list_free(struct tree_list *list);

/* Make directories, or end them when they hold all. made[i]: the entry was not there. */
int side_make_directories(struct side *side, const struct tree_entry *entries, size_t count,
			  enum dir_mkdir how, bool *made);

/* Open files to read: those that fail have their `error`, if `may_lack`; else the first is reported
 * and returned. */
int side_open_files(struct side *side, struct tree_file *files, size_t count, bool may_lack);
/* Create unfinished files of the lengths that are set; `keep`: go on with what is there. */
int side_create_files(struct side *side, struct tree_file *files, size_t count, bool keep);
/* Give the files their names, modes and times, and close them. */
int side_commit_files(struct side *side, struct tree_file *files, size_t count);
void side_close_files(struct side *side, struct tree_file *files, size_t count);
/* The server may believe that nobody uses the files any more: tell it, once a minute. */
void side_keep_files(struct side *side, const struct tree_file *files, size_t count);

/* The SHA-256 of `count` blocks of DIR_SUM_BLOCK from block `first` on, the last one of what is
 * left. At most DIR_SUM_MOST / DIR_SUM_BLOCK. */
int side_sum(struct side *side, const struct tree_file *file, uint64_t first, size_t count,
	     uint8_t (*out)[DIR_DIGEST]);

/* ---- the copy -------------------------------------------------------------------------------- */

/* Does the command line ask for files by name? Then tree_run() does it all. */
bool tree_wanted(const struct arguments *arguments);
int tree_run(const struct arguments *arguments);

#endif
