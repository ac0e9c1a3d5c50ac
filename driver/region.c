// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Pins: GPU pages that the NVIDIA driver lends this module, until it returns or loses them.
 *
 * The driver revokes pages by a callback. It may call at any time, even before the function that
 * gets the pages has returned, and it holds its own locks. Therefore never call the driver and
 * never allocate with a region's lock held. Read the driver's table of pages only with the lock
 * held: that makes the callback wait, after which the driver frees the table. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/timex.h>
#include <linux/wait_bit.h>

#include "wherry_gdr.h"

static struct p2p p2p;
atomic64_t tables_held = ATOMIC64_INIT(0);
static atomic_t regions = ATOMIC_INIT(0);
/* Counts pages: a handle is the page offset of a window, and must be a valid one. */
static atomic64_t next_handle = ATOMIC64_INIT(1);
#define HANDLES (1ull << 50)
/* More than any GPU has; the NVIDIA driver counts pages in 32 bits. */
#define LARGEST_PIN (1ull << 47)
static bool use_persistent;

/* Held during get and put of revocable pages; the outermost lock. The driver may revoke pages just
 * before a put. The put then does nothing, because the driver does not know the table any more;
 * unless a get of any client has received a new table at the same address in between. A lock for
 * each region or client would not prevent that. The lock costs little: the NVIDIA driver serializes
 * these calls by a global lock of its own. Persistent pages, the default, do not need it. */
static DEFINE_MUTEX(revocable_lock);

static void region_free(struct kref *references)
{
	struct region *region = container_of(references, struct region, references);

	mutex_destroy(&region->lock);
	user_put(region->user);
	kvfree(region->physical);
	kfree(region);
	if (atomic_dec_and_test(&regions))
		wake_up_var(&regions);
}

void region_put(struct region *region)
{
	kref_put(&region->references, region_free);
}

bool region_is_revoked(struct region *region)
{
	bool revoked;

	mutex_lock(&region->lock);
	revoked = region->revoked;
	mutex_unlock(&region->lock);
	return revoked;
}

/* ---- the driver's side ----------------------------------------------------------------------- */

/* The driver has the pages again. */
static void pages_gone(struct region *region)
{
	user_uncharge(region->user, region->size);
	atomic64_dec(&tables_held);
}

/* The driver's callback: the memory is being freed. After the return others may get the pages. */
static void region_revoked(void *data)
{
	struct region *region = data;
	struct nvidia_p2p_page_table *table;
	bool lost;

	mutex_lock(&region->lock);
	map_end(region);
	region->revoked = true;
	table = region->table;
	region->table = NULL;
	lost = region->lost;
	mutex_unlock(&region->lock);
	gdr_info("handle %llu: the memory was freed\n", region->handle);

	/* Without a table get has not returned yet, and the driver frees the table itself. */
	if (table && p2p.free)
		p2p.free(table);
	pages_gone(region);
	region_put(region);
	/* region_exit() waits for the rest of this. */
	if (lost)
		module_put(THIS_MODULE);
}

/* Drop the callback's reference and charge, if the callback has not run: it never will. */
static void callback_forget(struct region *region)
{
	if (region_is_revoked(region))
		return;
	pages_gone(region);
	region_put(region);
}

static int pages_get_revocable(struct region *region, struct nvidia_p2p_page_table **table)
{
	int error;

	/* Calls of others may take long: allow killing a process that waits for them. */
	if (mutex_lock_killable(&revocable_lock)) {
		pages_gone(region);
		return -EINTR;
	}
	kref_get(&region->references); /* the callback's */
	error = p2p.get(region->token, region->va_space, region->address, region->size, table,
			region_revoked, region);
	mutex_unlock(&revocable_lock);
	/* A get that fails does not call back. If it did, callback_forget() does nothing. */
	if (error)
		callback_forget(region);
	return error;
}

static int pages_get(struct region *region, u32 flags, struct nvidia_p2p_page_table **table)
{
	u32 how = flags & GDRDRV_PIN_FLAG_FORCE_PCIE ? P2P_GET_FORCE_PCIE : 0;
	int error = user_charge(region->user, region->size);

	if (error)
		return error;
	atomic64_inc(&tables_held);
	if (region->persistent) {
		error = p2p.get_persistent(region->address, region->size, table, how);
		if (error)
			pages_gone(region);
	} else {
		error = pages_get_revocable(region, table);
	}
	/* ENOTSUPP is internal to the kernel; user space has no name for it. */
	return error == -ENOTSUPP ? -EOPNOTSUPP : error;
}

/* The driver refuses to take pages back. Persistent pages are lost until the driver is unloaded.
 * For others the callback runs when the memory is freed, at the latest when its process ends; the
 * region and the module stay until then. */
static void pages_lost(struct region *region, int error)
{
	bool revoked;

	mutex_lock(&region->lock);
	revoked = region->revoked;
	if (!region->persistent && !revoked) {
		region->lost = true;
		__module_get(THIS_MODULE);
	}
	mutex_unlock(&region->lock);
	if (!revoked)
		pr_err("the NVIDIA driver does not take pages back (error %d): %s\n", error,
		       region->persistent ? "they are lost" :
					    "they stay until the memory is freed");
}

static void pages_put(struct region *region, struct nvidia_p2p_page_table *table)
{
	int error;

	if (region->persistent)
		error = p2p.put_persistent(region->address, table, 0);
	else
		error = p2p.put(region->token, region->va_space, region->address, table);
	if (error)
		pages_lost(region, error);
	else if (region->persistent)
		pages_gone(region);
	else
		callback_forget(region); /* the callback has run by now, or never will */
}

/* Copy the driver's table, if this module knows its version. With the region's lock held. */
static int table_read(struct region *region, const struct nvidia_p2p_page_table *table)
{
	u32 major = P2P_VERSION_MAJOR(table->version), i;

	if (major != 1 && major != 2) {
		pr_err_once("page tables of version %u.%u: this module knows 1 and 2 of NVIDIA's\n",
			    major, table->version & 0xffff);
		return -EOPNOTSUPP;
	}
	if (table->page_size != P2P_PAGE_SIZE_64KB) {
		pr_err_once("the NVIDIA driver has pages of another size (%u) than 64 KiB\n",
			    table->page_size);
		return -EOPNOTSUPP;
	}
	if (!table->pages || table->entries < region->size >> GPU_PAGE_SHIFT)
		return -EIO;
	region->cacheable = major >= 2 && table->flags & P2P_TABLE_CPU_CACHEABLE;
	for (i = 0; i < region->size >> GPU_PAGE_SHIFT; i++) {
		region->physical[i] = table->pages[i]->physical_address;
		if (!IS_ALIGNED(region->physical[i], PAGE_SIZE))
			return -EIO;
#ifdef CONFIG_ARM64
		/* Version 1 has no such flag. On a coherent link GPU memory is ordinary memory and
		 * must have the same mapping type as the kernel's own mapping. */
		if (major < 2 && pfn_valid(PHYS_PFN(region->physical[i])))
			region->cacheable = true;
#endif
	}
	return 0;
}

/* ---- the client's side ----------------------------------------------------------------------- */

/* Round [address, address + size) to whole GPU pages. */
static int region_round(struct region *region, u64 address, u64 size)
{
	u64 end;

	if (!address || !size || check_add_overflow(address, size, &end) ||
	    check_add_overflow(end, GPU_PAGE_SIZE - 1, &end) || size > LARGEST_PIN)
		return -EINVAL;
	region->aligned = IS_ALIGNED(address, GPU_PAGE_SIZE);
	region->address = address & ~(GPU_PAGE_SIZE - 1);
	region->size = (end & ~(GPU_PAGE_SIZE - 1)) - region->address;
	return 0;
}

static struct region *region_new(struct client *client, const struct gdrdrv_pin *pin)
{
	struct region *region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	int error;

	if (!region)
		return ERR_PTR(-ENOMEM);
	error = region_round(region, pin->addr, pin->size);
	if (error) {
		kfree(region);
		return ERR_PTR(error);
	}
	kref_init(&region->references);
	mutex_init(&region->lock);
	region->token = pin->p2p_token;
	region->va_space = pin->va_space;
	region->persistent = use_persistent;
	region->user = user_ref(client->user);
	atomic_inc(&regions);
	return region;
}

/* End the windows, and return the pages unless they were revoked. */
static void region_release(struct region *region)
{
	struct nvidia_p2p_page_table *table;

	if (!region->persistent)
		mutex_lock(&revocable_lock);
	mutex_lock(&region->lock);
	map_end(region);
	table = region->table;
	mutex_unlock(&region->lock);
	/* If the pages are revoked here, put only uses the table's address. */
	if (table)
		pages_put(region, table);
	if (!region->persistent)
		mutex_unlock(&revocable_lock);
}

/* Choose a handle for the region, and reserve its place among the client's regions.
 *
 * Each region gets its own range of page offsets, so that ending its windows does not touch others.
 * When the numbers wrap around, after years, ranges may overlap: the end of one region then removes
 * pages from another's window, and page faults bring them back. */
static int region_number(struct region *region, struct client *client)
{
	u64 pages = region->size >> PAGE_SHIFT;
	int error = -EBUSY;

	while (error == -EBUSY) {
		region->handle = atomic64_fetch_add(pages, &next_handle) % HANDLES;
		if (region->handle)
			error = xa_insert(&client->regions, region->handle, NULL, GFP_KERNEL);
	}
	return error;
}

/* Make the handle valid. Its place was reserved, but a client that guessed the handle may have
 * released the place, so this may fail. */
static int region_publish(struct region *region, struct client *client)
{
	int error;

	kref_get(&region->references); /* the client's */
	error = xa_err(xa_store(&client->regions, region->handle, region, GFP_KERNEL));
	if (error)
		region_put(region);
	return error;
}

/* Store the pages in the region, unless they were revoked meanwhile. */
static int region_adopt(struct region *region, struct nvidia_p2p_page_table *table,
			struct address_space *mapping)
{
	int error = -ENOMEM;

	region->physical = kvmalloc_array(region->size >> GPU_PAGE_SHIFT, sizeof(*region->physical),
					  GFP_KERNEL_ACCOUNT);
	mutex_lock(&region->lock);
	if (region->revoked) {
		error = -EINVAL; /* the memory was freed meanwhile, and the table with it */
	} else {
		region->table = table;
		if (region->physical)
			error = table_read(region, table);
		if (!error)
			region->mapping = mapping;
	}
	mutex_unlock(&region->lock);
	return error;
}

static int region_fill(struct region *region, struct client *client, struct address_space *mapping,
		       u32 flags)
{
	struct nvidia_p2p_page_table *table = NULL;
	cycles_t before = get_cycles();
	int error = pages_get(region, flags, &table);

	if (error)
		return error;
	region->cycles = get_cycles() - before;
	error = region_adopt(region, table, mapping);
	if (!error)
		error = region_publish(region, client);
	if (error)
		region_release(region);
	return error;
}

int region_pin(struct client *client, struct address_space *mapping, struct gdrdrv_pin *pin,
	       u32 flags)
{
	struct region *region;
	int error;

	if (use_persistent ? pin->p2p_token || pin->va_space : flags)
		return -EINVAL;
	region = region_new(client, pin);
	if (IS_ERR(region))
		return PTR_ERR(region);
	error = region_number(region, client);
	if (!error) {
		error = region_fill(region, client, mapping, flags);
		if (error)
			xa_release(&client->regions, region->handle);
	}
	pin->handle = region->handle;
	if (error)
		gdr_info("pinning %#llx, %llu bytes: error %d\n", pin->addr, pin->size, error);
	region_put(region);
	return error;
}

int region_unpin(struct client *client, u64 handle)
{
	struct region *region = xa_erase(&client->regions, handle);

	if (!region)
		return -EINVAL;
	region_release(region);
	region_put(region);
	return 0;
}

struct region *region_find(struct client *client, u64 handle)
{
	struct region *region;

	xa_lock(&client->regions);
	region = xa_load(&client->regions, handle);
	if (region)
		kref_get(&region->references);
	xa_unlock(&client->regions);
	return region;
}

void region_release_all(struct client *client)
{
	struct region *region;
	unsigned long handle;

	xa_for_each(&client->regions, handle, region) region_unpin(client, handle);
	xa_destroy(&client->regions);
}

/* ---- the module ------------------------------------------------------------------------------ */

bool region_persistent(void)
{
	return use_persistent;
}

static void p2p_forget(void)
{
	if (p2p.get)
		symbol_put(nvidia_p2p_get_pages);
	if (p2p.put)
		symbol_put(nvidia_p2p_put_pages);
	if (p2p.free)
		symbol_put(nvidia_p2p_free_page_table);
	if (p2p.get_persistent)
		symbol_put(nvidia_p2p_get_pages_persistent);
	if (p2p.put_persistent)
		symbol_put(nvidia_p2p_put_pages_persistent);
}

int __init region_init(bool want_persistent)
{
	bool revocable, persistent;

	p2p.get = symbol_get(nvidia_p2p_get_pages);
	p2p.put = symbol_get(nvidia_p2p_put_pages);
	p2p.free = symbol_get(nvidia_p2p_free_page_table);
	p2p.get_persistent = symbol_get(nvidia_p2p_get_pages_persistent);
	p2p.put_persistent = symbol_get(nvidia_p2p_put_pages_persistent);
	revocable = p2p.get && p2p.put;
	persistent = p2p.get_persistent && p2p.put_persistent;
	if (!revocable && !persistent) {
		pr_err("no NVIDIA driver to get pages from: load nvidia.ko, version 550 or "
		       "later\n");
		p2p_forget();
		return -ENODEV;
	}
	use_persistent = persistent && (want_persistent || !revocable);
	if (want_persistent && !persistent)
		pr_info("no persistent pages with this NVIDIA driver: freeing ends windows\n");
	return 0;
}

void region_exit(void)
{
	/* No file is open, but a callback that began before the last close may still run: until it
	 * puts its region, and for a few instructions after that, in which it never sleeps. Once
	 * every task has slept or been in user space, it has left this module's code. */
	wait_var_event(&regions, !atomic_read(&regions));
	if (!use_persistent)
		synchronize_rcu_tasks();
	p2p_forget();
}
