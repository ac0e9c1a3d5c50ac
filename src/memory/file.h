/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file.h: a range of a file as memory (docs/files.md)
 *
 * A file's registration has a struct wh_file, and an address range that is reserved (PROT_NONE) so
 * that regions of files are found by address like all others. Nobody loads or stores there: bytes
 * go through wh_file_move(), on threads that may wait for a disk: those of its file system.
 */
#ifndef WH_MEMORY_FILE_H
#define WH_MEMORY_FILE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <wherry/file.h>

#include "util/list.h"
#include "util/turns.h"

struct wh_file_system;
struct wh_file_threads;
struct wh_memory_domain;
struct wh_registration;

/* ---- files ----------------------------------------------------------------------------------- */

/* wh_file.direct, if it is no descriptor */
#define WH_FILE_DIRECT_UNKNOWN (-1) /* not tried yet */
#define WH_FILE_DIRECT_NONE (-2) /* the file system has none */

struct wh_file {
	int fd;
	uint64_t start, length; /* of the range; bytes */
	bool writable, grows;
	bool waits; /* even a read of the page cache may wait, for a server of the file system */
	uint32_t durable; /* enum wh_file_durable */
	char name[128]; /* the path, or the end of it, or "descriptor 7"; for texts */
	void *addresses; /* reserved; whole pages */
	struct wh_file_system *system; /* whose threads read and write it */
	struct wh_file_rings *rings; /* the domain's, for what is not in the page cache; or NULL */
	/* past the page cache, where memory and file are aligned alike: reads of what is not in it,
	 * writes */
	bool wants_direct, writes_direct;
	_Atomic int direct; /* the descriptor for that; WH_FILE_DIRECT_...: none */
	_Atomic bool warm; /* what was looked at last was in the page cache */
	/* of writes: held exclusively through the page cache, shared past it (`writes_direct`) */
	pthread_rwlock_t cache;
	uint32_t alignment; /* set before `direct`: of memory and file; a power of two */
	/* One thread at a time calls fdatasync() or fsync(), for all writes that ended before it
	 * began. */
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t synced;
	bool syncing;
	uint64_t sync_next, sync_done; /* the number of the next sync, of the last one that ended */
	int sync_error; /* negative errno of the first that failed; stays */
};

/* Bytes between a file and memory. */
struct wh_file_extent {
	uint64_t offset; /* in the range */
	char *memory;
	uint64_t length;
};

/* Register a range of a file. Of `path` and `fd` one is used: the path, unless it is NULL. The
 * options have been copied and belong to the caller. 0, or an error of wh_file_register(). */
int wh_file_registration(struct wh_memory_domain *domain, const char *path, int fd,
			 const struct wh_file_options *options, struct wh_registration **out);
/* Close the file and free its addresses. NULL is allowed. */
void wh_file_close(struct wh_file *file);

/* Move the extents, op WH_READ from the file, WH_WRITE into it; they lie in the range. What is in
 * the page cache is read one after the other; the rest at once, by io_uring where there is one.
 * Waits for the file system. 0, or a negative errno with a text: *moved extents from the first on
 * are whole, the next one failed, and the bytes of those behind it are undefined in their targets.
 */
int wh_file_move(struct wh_file *file, uint32_t op, const struct wh_file_extent *extents,
		 uint32_t count, uint32_t *moved);
/* Read the extents if all of them are in the page cache, without waiting for the file system.
 * False: they are not, or the kernel does not say; the bytes of their memory are undefined then,
 * and wh_file_move() reads them or says what is wrong. */
bool wh_file_read_cached(struct wh_file *file, const struct wh_file_extent *extents,
			 uint32_t count);
/* Is most of [at, at + length) of the file (not of the range) in the page cache? May wait. */
bool wh_file_is_resident(const struct wh_file *file, uint64_t at, uint64_t length);
/* The descriptor for reads and writes past the page cache, and file->alignment; negative: none. */
int wh_file_open_direct(struct wh_file *file);
/* Around a write past the page cache, up to byte `end` of the file, that does not go through
 * wh_file_move(); file->writes_direct is set. 0: the caller writes, and then calls the other one;
 * or a negative errno with a text. */
int wh_file_begin_direct(struct wh_file *file, uint64_t end);
/* `error`: of the write, 0 or a negative errno. Returns it, or that the file has been made shorter.
 */
int wh_file_end_direct(struct wh_file *file, uint64_t end, int error);
/* For explanations: how it is written, and why not past the page cache if that was asked for.
 * False: it was not. */
bool wh_file_describe_writes(struct wh_file *file, char *out, size_t size);
/* For explanations of a file that goes through slots, op WH_READ into them: add to the line how it
 * is written, and why io_uring is not used or goes without registered buffers, if that is so.
 * False: the line is empty. */
bool wh_file_describe_staged(struct wh_file *file, uint32_t op, char *line, size_t size);
/* Make what wh_file_move() has written as durable as the file's options say. Waits. 0, or a
 * negative errno with a text. */
int wh_file_sync(struct wh_file *file);

/* ---- threads that may wait for files --------------------------------------------------------- */

/*
 * Each file system (st_dev) has a queue and threads of its own. One that does not answer holds its
 * own threads, and nobody else's: no clock has to tell that it hangs, and nothing has to be taken
 * from it. Jobs that touch several file systems have a queue of their own, too.
 */

/* Work for them. The caller keeps it until `run` is called, once. */
struct wh_file_job {
	struct wh_list link;
	void (*run)(struct wh_file_job *job);
	struct wh_file_system *system; /* where it is queued */
	bool urgent; /* before those that are not */
};

/* The queue and the threads of one file system. The threads start when there is work, and stay. In
 * an engine without threads a poller runs one job of each file system in each turn. */
struct wh_file_system {
	struct wh_file_system *next;
	struct wh_file_threads *threads;
	uint64_t device;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t work; /* or a thread has ended; by the monotonic clock */
	struct wh_list urgent, jobs;
	pthread_t *thread; /* threads->most of them */
	unsigned count, ended, idle; /* threads: started, of these ended, waiting for work */
	unsigned queued; /* length of both lists */
	bool stop;
};

/* Those of an engine. */
struct wh_file_threads {
	unsigned most; /* threads of each file system */
	struct wh_turns *turns; /* NULL: there are threads */
	struct wh_poller poller;
	struct wh_file_system *several; /* for jobs that touch more than one */
	pthread_mutex_t lock; /* of adding to what follows */
	struct wh_file_system *_Atomic systems; /* grows at its head only */
};

/* `most`: the number of threads of a file system, at most. 0 or -ENOMEM. */
int wh_file_threads_open(unsigned most, struct wh_turns *turns, struct wh_file_threads **out);
/* Have the threads end when they have run what is queued. False: the deadline has passed, and some
 * have not. In an engine without threads it waits for the file systems. NULL is allowed. */
bool wh_file_threads_end(struct wh_file_threads *threads, int64_t deadline);
/* The same without a deadline, and free them. NULL is allowed. */
void wh_file_threads_close(struct wh_file_threads *threads);
/* The file system with that st_dev; it stays until the threads are closed. 0 or -ENOMEM. */
int wh_file_threads_system(struct wh_file_threads *threads, uint64_t device,
			   struct wh_file_system **out);

/* Add the file's to *system, which is NULL at first: then it is the file's, or threads->several if
 * others have been added. `file` may be NULL. */
void wh_file_system_add(struct wh_file_system **system, const struct wh_file *file);

/* Queue work. Any thread; does not wait, unless no thread can be started: then it runs at once. */
void wh_file_system_run(struct wh_file_system *system, struct wh_file_job *job);
/* Queue work at job->system, `first`: before the rest. A lock may be held. False: no thread can be
 * started; the caller runs it. */
bool wh_file_job_queue(struct wh_file_job *job, bool first);
/* Take back what was queued. False: `run` has been called or is about to be. */
bool wh_file_job_take_back(struct wh_file_job *job);

#endif
