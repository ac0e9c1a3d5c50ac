/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WHERRY_MEMORY_H
#define WHERRY_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct wh_engine;
struct wh_peer;
struct wh_region;

/* ---- memory ------------------------------------------------------------------------------- */

enum wh_memory_kind {
	WH_MEMORY_PAGEABLE = 1, /* private anonymous pages */
	WH_MEMORY_HUGE = 2,     /* private; hugetlb pages if reserved, else transparent huge pages */
	WH_MEMORY_SHARED = 3,   /* a sealed memfd that engines on the same host can map */
};

struct wh_memory_options {
	size_t size;
	uint32_t kind; /* enum wh_memory_kind; 0: WH_MEMORY_SHARED */
	uint32_t reserved;
};

/* Allocate `length` bytes, zeroed and page-aligned, of which the engine knows the kind. Choose
 * WH_MEMORY_SHARED (the default) for memory that engines on this host should reach by plain loads
 * and stores. options may be NULL. Pages are taken on first touch.
 * 0, or -EINVAL (length 0, an unknown kind), -ENOMEM, -EMFILE. */
int wh_memory_alloc(struct wh_engine *engine, size_t length, const struct wh_memory_options *options,
		    void **out);

/* Free what wh_memory_alloc() gave. -EINVAL (not such an address), -EBUSY (a region lies in it). */
int wh_memory_free(struct wh_engine *engine, void *address);

struct wh_memory_info {
	size_t size;        /* set by the caller */
	uint32_t kind;      /* enum wh_memory_kind; memory the engine did not allocate: PAGEABLE */
	uint32_t page_size; /* bytes; WH_MEMORY_HUGE: what was really got */
	void *base;         /* of the allocation; for memory of others, the address asked for */
	uint64_t length;    /* of the allocation; for memory of others, 0: unknown */
};

/* What is known of an address. 0, -EINVAL, -E2BIG. */
int wh_memory_query(struct wh_engine *engine, const void *address, struct wh_memory_info *info);

/* ---- regions ------------------------------------------------------------------------------ */

/* What peers may do with a region. */
enum wh_access {
	WH_ACCESS_READ = 1,
	WH_ACCESS_WRITE = 2,
	WH_ACCESS_NONE = 4, /* nothing: the region is for this engine's own use, not published */
};

struct wh_region_options {
	size_t size;
	/* A name by which peers can find the region, at most 63 bytes, unique in the engine, of
	 * the characters A-Z a-z 0-9 . _ -; NULL: none. */
	const char *name;
	uint32_t access; /* enum wh_access, or-ed; 0: READ | WRITE */
	uint32_t reserved;
};

/* Register [address, address+length) for transfers. The caller keeps it mapped, readable and (for
 * access WRITE, or as the target of a read) writable until wh_region_unregister(). Regions may
 * overlap. A region with access READ or WRITE is published: connected peers learn of it in a
 * moment. options may be NULL. Does not touch the memory and does not block on peers.
 * 0, or -EINVAL (length 0, a range that wraps, a bad name), -EEXIST (the name), -ENOMEM. */
int wh_region_register(struct wh_engine *engine, void *address, size_t length,
		       const struct wh_region_options *options, struct wh_region **out);

/* Take the region back. After it returns no peer reads or writes it. Blocks until transfers of
 * peers that are in the middle of a copy have let go, and until peers that map it have unmapped.
 * 0, or -EBUSY (a batch of this engine that uses it is unfinished, or a peer on this host has not
 * let go of it within the knob `timeout`; unpublished all the same, call again), -EDEADLK (from a
 * callback). */
int wh_region_unregister(struct wh_region *region);

/* The region's id, unique within the engine's epoch, never used again. */
uint64_t wh_region_id(const struct wh_region *region);

/* Which region of this engine holds all of [address, address+length), and at which offset; the
 * smallest one if several do. 0, or -ENOENT. */
int wh_region_lookup(struct wh_engine *engine, const void *address, size_t length,
		     struct wh_region **out, uint64_t *offset);

/* ---- the regions of a peer ---------------------------------------------------------------- */

/* A region that a peer publishes. */
struct wh_remote {
	uint64_t id;
	uint64_t address; /* where it lies in the peer's address space */
	uint64_t length;
	uint32_t access; /* enum wh_access */
	uint32_t kind;   /* enum wh_memory_kind */
	char name[64];   /* "": none */
};

/* Find a published region of the peer by name. Waits up to `timeout` ns (0: does not wait) for it to
 * be published, and for a peer that is lost to be reached again. 0, or -ENOENT, -ECONNRESET (the peer
 * is still lost), -ESTALE (it was restarted), -EDEADLK (in a callback). */
int wh_peer_find(struct wh_peer *peer, const char *name, int64_t timeout, struct wh_remote *out);

/* The peer's regions one after the other: *cursor starts at 0 and is moved on. 0, or -ENOENT at
 * the end. Regions that come or go meanwhile may or may not be seen. */
int wh_peer_next(struct wh_peer *peer, uint64_t *cursor, struct wh_remote *out);

/* Which region of the peer holds all of [address, address+length) of the peer's address space,
 * and at which offset; the smallest one if several do. 0, or -ENOENT. */
int wh_peer_lookup(struct wh_peer *peer, uint64_t address, uint64_t length, struct wh_remote *out,
		   uint64_t *offset);

/* ---- keys, for users with a control plane of their own ------------------------------------ */

/* The most bytes in a key. */
#define WH_KEY_MAX 128

/* Write the region's key, versioned bytes that name its engine, epoch, id, place and rights, to
 * `buffer`. *length is its size on entry and the bytes used on return. 0, or -ENOSPC. */
int wh_region_key(const struct wh_region *region, void *buffer, size_t *length);

/* Turn a key of one of the peer's regions into a remote region. Waits up to `timeout` ns until
 * the peer has published it. 0, or -EINVAL (not a key), -EPROTONOSUPPORT (a newer version),
 * -ESTALE (made by an earlier epoch of the peer or by another engine), -ENOENT. */
int wh_peer_import(struct wh_peer *peer, const void *key, size_t length, int64_t timeout,
		   struct wh_remote *out);

#ifdef __cplusplus
}
#endif
#endif
