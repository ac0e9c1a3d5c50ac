/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Declarations that the files of the module share. */
#ifndef WHERRY_GDR_H
#define WHERRY_GDR_H

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/printk.h>
#include <linux/xarray.h>

#include "gdrdrv.h"
#include "p2p.h"

#define GPU_PAGE_SHIFT 16
#define GPU_PAGE_SIZE (1ull << GPU_PAGE_SHIFT)

struct user;

/* One open file. */
struct client {
	/* The process that opened the file. The references keep addresses and numbers from being
	 * reused. The address space changes at exec(); the id differs in a child of vfork(). */
	struct mm_struct *space;
	struct pid *owner;
	struct user *user;
	struct xarray regions; /* by handle; holds a reference to each */
};

/* One pin. References: the client's, one for each mapping, and one for the NVIDIA driver's callback
 * while it may run. */
struct region {
	struct kref references;
	u64 handle; /* the page offset of its window */
	u64 address, size;
	bool aligned; /* the requested address is the start of the first GPU page */
	u64 token;
	u32 va_space;
	bool persistent;
	u64 cycles;
	struct user *user; /* charged until the driver has the pages back */
	/* The address of each GPU page: a copy, because the driver's table may go at any time. */
	u64 *physical;
	bool cacheable;

	/* Page faults take it under mmap_lock, and the driver's callback takes it under the
	 * driver's locks, which memory reclaim may need. So while holding it, do not allocate,
	 * touch user memory or call the driver. */
	struct mutex lock;
	struct nvidia_p2p_page_table *table; /* NULL: not got yet, or revoked */
	struct address_space *mapping; /* of its windows; NULL: no more windows allowed */
	bool revoked;
	bool lost; /* the driver did not take the pages back */
	enum gdrdrv_mapping requested, mapped_as;
	unsigned int windows; /* memory areas; more than one if a part was unmapped */
	u32 reserved; /* GPU pages whose memory type is set */
};

/* ---- main.c: the device, its ioctls, parameters and files in /proc */

extern int dbg_enabled, info_enabled;

#define gdr_debug(...)                                                                             \
	do {                                                                                       \
		if (dbg_enabled)                                                                   \
			pr_info(__VA_ARGS__);                                                      \
	} while (0)
#define gdr_info(...)                                                                              \
	do {                                                                                       \
		if (dbg_enabled || info_enabled)                                                   \
			pr_info(__VA_ARGS__);                                                      \
	} while (0)

bool is_owner(const struct client *client);

/* ---- region.c: pins */

/* Functions of the NVIDIA driver; NULL: this driver lacks it. */
struct p2p {
	typeof(&nvidia_p2p_get_pages) get;
	typeof(&nvidia_p2p_put_pages) put;
	typeof(&nvidia_p2p_free_page_table) free;
	typeof(&nvidia_p2p_get_pages_persistent) get_persistent;
	typeof(&nvidia_p2p_put_pages_persistent) put_persistent;
};

/* The number of page tables got from the NVIDIA driver and not returned. */
extern atomic64_t tables_held;

/* Find the NVIDIA driver, which then stays loaded, and how its pages are to be got. 0 or -ENODEV.
 */
int region_init(bool want_persistent);
/* Wait until no callback runs any more, not even its last instructions. */
void region_exit(void);
bool region_persistent(void);

/* 0 and a handle in `pin`, or -errno. */
int region_pin(struct client *client, struct address_space *mapping, struct gdrdrv_pin *pin,
	       u32 flags);
/* Return the pages to the driver; windows onto them fault from now on. 0 or -EINVAL. */
int region_unpin(struct client *client, u64 handle);
/* Find a region and take a reference; NULL: the client has no such handle. */
struct region *region_find(struct client *client, u64 handle);
void region_put(struct region *region);
void region_release_all(struct client *client);
/* Has the driver revoked the pages? If so, no window shows them any more. */
bool region_is_revoked(struct region *region);

/* ---- user.c: how much each user has pinned */

/* Set the limit for each user, in bytes; 0: none. */
void user_init(u64 limit);
/* Find or create a user's account, and take a reference; NULL: no memory. */
struct user *user_get(kuid_t uid);
struct user *user_ref(struct user *user);
void user_put(struct user *user);
/* Charge bytes to the user. 0, or -EDQUOT: the limit would be exceeded; nothing is charged. */
int user_charge(struct user *user, u64 bytes);
void user_uncharge(struct user *user, u64 bytes);

/* ---- map.c: windows */

enum gdrdrv_mapping map_default(const struct region *region);
bool map_possible(const struct region *region, enum gdrdrv_mapping type);
int map_window(struct file *file, struct vm_area_struct *area);
/* With the region's lock held: end every window, wherever it is. */
void map_end(struct region *region);

#endif
