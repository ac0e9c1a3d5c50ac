// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The NVIDIA driver's peer-to-peer functions over the BAR 2 of a PCI device (QEMU's ivshmem), with
 * the contract of the real ones: look-up by the calling process, 64 KiB pages, callbacks from
 * within the free with the driver's lock held. And with faults to order, as module parameters. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/memremap.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "lab_gpu.h"
#include "p2p.h"

#ifdef OLD_DRIVER
#define LICENSE "Proprietary" /* what the kernel thinks of that is a part of what is tested */
#define VERSION 0x10002
#else
#define LICENSE "Dual MIT/GPL"
#define VERSION 0x20000
#endif

#ifndef EXPORT
#define EXPORT(symbol) EXPORT_SYMBOL_GPL(symbol)
#endif

#define ORDER(name, initial, text)                                                                 \
	static int name = initial;                                                                 \
	module_param(name, int, 0644);                                                             \
	MODULE_PARM_DESC(name, text)

ORDER(version, VERSION, "of the page tables");
ORDER(size_type, P2P_PAGE_SIZE_64KB, "what page tables say of it");
ORDER(cacheable, 0, "page tables say that the processor may cache the pages");
ORDER(missing, 0, "entries that page tables have too few");
ORDER(skew, 0, "added to the physical addresses");
ORDER(aperture, 0, "pages that may be got at once; 0: any number");
ORDER(fail_get, 0, "the n-th call from now fails, once");
ORDER(fail_put, 0, "the n-th call from now fails, once");
ORDER(fail_errno, 12, "with this");
ORDER(refuse_flags, 0, "get_pages_persistent takes no flags");
ORDER(delay_ms, 0, "sleep before a callback, with the lock held");
ORDER(late_ms, 0, "sleep before pages are returned, without the lock");
ORDER(free_ms, 0, "sleep in nvidia_p2p_free_page_table, which callbacks call");
ORDER(early, 0, "the n-th get from now has its pages taken away before it returns, once");
ORDER(early_errno, 0, "with this; 0: as if it had succeeded");

/* Less if the order is taken back meanwhile. */
static void sleep_ms(const int *order)
{
	int slept;

	for (slept = 0; slept < READ_ONCE(*order); slept += 10)
		msleep(10);
}

struct allocation {
	struct list_head link;
	struct file *file;
	pid_t tgid;
	u64 address, size;
	u32 first; /* page in the BAR */
	u32 tables;
	bool scattered, freed;
};

struct grant {
	struct list_head link;
	struct nvidia_p2p_page_table table;
	struct allocation *allocation;
	void (*revoked)(void *data);
	void *data;
};

/* The one lock, as wide as the real driver's: over get, put, free and the callbacks. */
static DEFINE_MUTEX(gpu_lock);
static LIST_HEAD(allocations);
static LIST_HEAD(grants);
static struct pci_dev *gpu;
static phys_addr_t bar;
static u32 bar_pages, pages_got, calls, callbacks;
static unsigned long *bar_used;
static bool with_pages;
#ifndef OLD_DRIVER /* what this takes is for GPL modules alone */
module_param_named(pages, with_pages, bool, 0444);
MODULE_PARM_DESC(
	pages, "the BAR has struct pages, so that other drivers can pin what a process maps of it");
#endif
static u64 next_address = 0x700000000000ull;

static bool due(int *countdown)
{
	return *countdown > 0 && --*countdown == 0;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static struct allocation *find(pid_t tgid, u64 address)
{
	struct allocation *allocation;

	list_for_each_entry(allocation, &allocations, link)
	{
		if (!allocation->freed && allocation->tgid == tgid &&
		    address >= allocation->address &&
		    address - allocation->address < allocation->size)
			return allocation;
	}
	return NULL;
}

static int allocate(struct file *file, struct lab_gpu_alloc *request)
{
	u32 count = request->size / LAB_GPU_PAGE;
	struct allocation *allocation;
	unsigned long first;

	if (!request->size || (request->size | request->address) % LAB_GPU_PAGE ||
	    request->size / LAB_GPU_PAGE > bar_pages)
		return -EINVAL;
	allocation = kzalloc(sizeof(*allocation), GFP_KERNEL);
	if (!allocation)
		return -ENOMEM;
	mutex_lock(&gpu_lock);
	first = bitmap_find_next_zero_area(bar_used, bar_pages, 0, count, 0);
	if (first + count > bar_pages ||
	    (request->address && find(current->tgid, request->address))) {
		mutex_unlock(&gpu_lock);
		kfree(allocation);
		return -ENOMEM;
	}
	bitmap_set(bar_used, first, count);
	if (!request->address) {
		request->address = next_address;
		next_address += request->size + LAB_GPU_PAGE;
	}
	allocation->file = file;
	allocation->tgid = current->tgid;
	allocation->address = request->address;
	allocation->size = request->size;
	allocation->first = first;
	allocation->scattered = request->flags & LAB_GPU_SCATTERED;
	list_add_tail(&allocation->link, &allocations);
	request->offset = first * LAB_GPU_PAGE;
	request->pages = with_pages;
	mutex_unlock(&gpu_lock);
	return 0;
}

/* Memory goes when it is freed and nobody holds its pages. */
static void release_allocation(struct allocation *allocation)
{
	if (!allocation->freed || allocation->tables)
		return;
	bitmap_clear(bar_used, allocation->first, allocation->size / LAB_GPU_PAGE);
	list_del(&allocation->link);
	kfree(allocation);
}

static void forget_grant(struct grant *grant)
{
	u32 i;

	for (i = 0; i < grant->table.entries; i++)
		kfree(grant->table.pages[i]);
	kvfree(grant->table.pages);
	kfree(grant);
}

static void free_grant(struct grant *grant)
{
	struct allocation *allocation = grant->allocation;

	list_del(&grant->link);
	pages_got -= grant->table.entries;
	forget_grant(grant);
	allocation->tables--;
	release_allocation(allocation);
}

static void take_away(struct grant *grant)
{
	sleep_ms(&delay_ms);
	callbacks++;
	grant->revoked(grant->data);
	free_grant(grant);
}

static void free_allocation(struct allocation *allocation)
{
	struct grant *grant, *next;

	allocation->freed = true;
	allocation->tables++; /* so that it stays for the length of this */
	list_for_each_entry_safe(grant, next, &grants, link)
	{
		if (grant->allocation == allocation && grant->revoked)
			take_away(grant);
	}
	allocation->tables--;
	release_allocation(allocation);
}

/* ---- what is exported ------------------------------------------------------------------------ */

/* All that a grant needs, without the lock, which memory reclaim may want. */
static struct grant *new_grant(u64 length)
{
	u32 count = length / LAB_GPU_PAGE;
	struct grant *grant = kzalloc(sizeof(*grant), GFP_KERNEL);

	if (!grant)
		return NULL;
	INIT_LIST_HEAD(&grant->link);
	grant->table.version = version;
	grant->table.page_size = size_type;
	grant->table.flags = cacheable ? P2P_TABLE_CPU_CACHEABLE : 0;
	grant->table.pages = kvcalloc(count, sizeof(*grant->table.pages), GFP_KERNEL);
	while (grant->table.pages && grant->table.entries < count) {
		struct nvidia_p2p_page *entry = kzalloc(sizeof(*entry), GFP_KERNEL);

		if (!entry)
			break;
		grant->table.pages[grant->table.entries++] = entry;
	}
	if (grant->table.pages && grant->table.entries == count)
		return grant;
	forget_grant(grant);
	return NULL;
}

static void fill_grant(struct grant *grant, struct allocation *allocation, u64 address)
{
	u32 pages = allocation->size / LAB_GPU_PAGE, page, i;

	for (i = 0; i < grant->table.entries; i++) {
		page = (address - allocation->address) / LAB_GPU_PAGE + i;
		if (allocation->scattered)
			page = pages - 1 - page;
		grant->table.pages[i]->physical_address =
			bar + (allocation->first + page) * LAB_GPU_PAGE + skew;
	}
	for (i = 0; i < missing && grant->table.entries; i++)
		kfree(grant->table.pages[--grant->table.entries]);
	pages_got += grant->table.entries;
	grant->allocation = allocation;
	allocation->tables++;
	list_add_tail(&grant->link, &grants);
}

/* With the lock held. */
static int give_pages(struct grant *grant, u64 address, u64 length)
{
	struct allocation *allocation;

	calls++;
	if (due(&fail_get))
		return -fail_errno;
	allocation = find(current->tgid, address);
	if (!allocation || length > allocation->size - (address - allocation->address))
		return -EINVAL;
	if (aperture && pages_got + length / LAB_GPU_PAGE > aperture)
		return -ENOMEM;
	fill_grant(grant, allocation, address);
	return 0;
}

static int get_pages(u64 address, u64 length, struct nvidia_p2p_page_table **table,
		     void (*revoked)(void *data), void *data)
{
	struct grant *grant;
	int error;

	if (!length || (address | length) % LAB_GPU_PAGE || length / LAB_GPU_PAGE > bar_pages)
		return -EINVAL;
	grant = new_grant(length);
	if (!grant)
		return -ENOMEM;
	grant->revoked = revoked;
	grant->data = data;
	mutex_lock(&gpu_lock);
	error = give_pages(grant, address, length);
	if (error) {
		forget_grant(grant);
	} else {
		*table = &grant->table;
		if (revoked && due(&early)) {
			take_away(grant);
			error = -early_errno;
		}
	}
	mutex_unlock(&gpu_lock);
	if (!error)
		sleep_ms(&late_ms);
	return error;
}

static int put_pages(u64 address, struct nvidia_p2p_page_table *table, bool persistent)
{
	struct grant *grant;
	/* a revoked one is gone already, and that is fine */
	int error = persistent ? -EINVAL : 0;

	if (!table)
		return 0;
	mutex_lock(&gpu_lock);
	calls++;
	if (due(&fail_put)) {
		error = -fail_errno;
		goto out;
	}
	list_for_each_entry(grant, &grants, link)
	{
		if (&grant->table == table) {
			WARN_ON(persistent == !!grant->revoked);
			WARN_ON(address < grant->allocation->address);
			free_grant(grant);
			error = 0;
			goto out;
		}
	}
	WARN_ON(persistent);
out:
	mutex_unlock(&gpu_lock);
	return error;
}

int nvidia_p2p_get_pages(u64 token, u32 va_space, u64 address, u64 length,
			 struct nvidia_p2p_page_table **table, void (*revoked)(void *data),
			 void *data)
{
	return revoked ? get_pages(address, length, table, revoked, data) : -EINVAL;
}
EXPORT(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(u64 token, u32 va_space, u64 address, struct nvidia_p2p_page_table *table)
{
	return put_pages(address, table, false);
}
EXPORT(nvidia_p2p_put_pages);

int nvidia_p2p_free_page_table(struct nvidia_p2p_page_table *table)
{
	sleep_ms(&free_ms);
	return 0; /* the table is freed after the callback */
}
EXPORT(nvidia_p2p_free_page_table);

#ifndef OLD_DRIVER
int nvidia_p2p_get_pages_persistent(u64 address, u64 length, struct nvidia_p2p_page_table **table,
				    u32 flags)
{
	if (flags > P2P_GET_FORCE_PCIE || (flags && refuse_flags))
		return -EINVAL;
	return get_pages(address, length, table, NULL, NULL);
}
EXPORT(nvidia_p2p_get_pages_persistent);

int nvidia_p2p_put_pages_persistent(u64 address, struct nvidia_p2p_page_table *table, u32 flags)
{
	return flags ? -EINVAL : put_pages(address, table, true);
}
EXPORT(nvidia_p2p_put_pages_persistent);
#endif

/* ---- the device ------------------------------------------------------------------------------ */

static void nobody(void *data)
{
}

static int loop(const struct lab_gpu_alloc *request)
{
	struct nvidia_p2p_page_table *table;
	u32 i;
	int error;

	for (i = 0; i < request->flags; i++) {
		error = get_pages(request->address, LAB_GPU_PAGE, &table, nobody, NULL);
		if (error)
			return error;
		put_pages(request->address, table, false);
	}
	return 0;
}

static int free_address(u64 address)
{
	struct allocation *allocation;
	int error = -EINVAL;

	mutex_lock(&gpu_lock);
	allocation = find(current->tgid, address);
	if (allocation && allocation->address == address) {
		free_allocation(allocation);
		error = 0;
	}
	mutex_unlock(&gpu_lock);
	return error;
}

static void get_state(struct lab_gpu_state *state)
{
	struct list_head *link;

	mutex_lock(&gpu_lock);
	*state = (struct lab_gpu_state){ .calls = calls, .callbacks = callbacks };
	list_for_each(link, &allocations) state->allocations++;
	list_for_each(link, &grants) state->tables++;
	mutex_unlock(&gpu_lock);
}

static long gpu_ioctl(struct file *file, unsigned int number, unsigned long argument)
{
	void __user *user = (void __user *)argument;
	struct lab_gpu_alloc request;
	struct lab_gpu_state state;
	u64 address;
	int error;

	switch (number) {
	case LAB_GPU_ALLOC:
		if (copy_from_user(&request, user, sizeof(request)))
			return -EFAULT;
		error = allocate(file, &request);
		if (error)
			return error;
		return copy_to_user(user, &request, sizeof(request)) ? -EFAULT : 0;
	case LAB_GPU_FREE:
		if (copy_from_user(&address, user, sizeof(address)))
			return -EFAULT;
		return free_address(address);
	case LAB_GPU_STATE:
		get_state(&state);
		return copy_to_user(user, &state, sizeof(state)) ? -EFAULT : 0;
	case LAB_GPU_LOOP:
		if (copy_from_user(&request, user, sizeof(request)))
			return -EFAULT;
		return loop(&request);
	}
	return -ENOTTY;
}

/* ---- struct pages ---------------------------------------------------------------------------- */

#if !defined(OLD_DRIVER) && defined(CONFIG_ZONE_DEVICE)
static struct dev_pagemap bar_map;

static int map_bar(void)
{
	void *start;

	if (!with_pages)
		return 0;
	bar_map.type = MEMORY_DEVICE_GENERIC;
	bar_map.range.start = bar;
	bar_map.range.end = bar + bar_pages * LAB_GPU_PAGE - 1;
	bar_map.nr_range = 1;
	start = memremap_pages(&bar_map, NUMA_NO_NODE);
	return PTR_ERR_OR_ZERO(start);
}

static void unmap_bar(void)
{
	if (with_pages)
		memunmap_pages(&bar_map);
}
#else
static int map_bar(void)
{
	return with_pages ? -EOPNOTSUPP : 0;
}

static void unmap_bar(void)
{
}
#endif

/* Cached, as the kernel has them itself. */
static int insert_pages(struct vm_area_struct *area, u64 offset, u64 length)
{
	u64 at;
	int error = 0;

	for (at = 0; at < length && !error; at += PAGE_SIZE)
		error = vm_insert_page(area, area->vm_start + at,
				       pfn_to_page(PHYS_PFN(bar + offset + at)));
	return error;
}

static int gpu_mmap(struct file *file, struct vm_area_struct *area)
{
	u64 length = area->vm_end - area->vm_start, offset = (u64)area->vm_pgoff << PAGE_SHIFT;
	unsigned long bits = pgprot_val(area->vm_page_prot) & ~_PAGE_CACHE_MASK;

	if (offset > bar_pages * LAB_GPU_PAGE || length > bar_pages * LAB_GPU_PAGE - offset)
		return -EINVAL;
	if (with_pages)
		return insert_pages(area, offset, length);
	area->vm_page_prot = __pgprot(bits | cachemode2protval(_PAGE_CACHE_MODE_WC));
	return remap_pfn_range(area, area->vm_start, PHYS_PFN(bar + offset), length,
			       area->vm_page_prot);
}

static int gpu_release(struct inode *inode, struct file *file)
{
	struct allocation *allocation, *found;

	/* Looked for anew each time: freeing one may end others' grants. */
	do {
		found = NULL;
		mutex_lock(&gpu_lock);
		list_for_each_entry(allocation, &allocations, link)
		{
			if (allocation->file == file && !allocation->freed) {
				found = allocation;
				break;
			}
		}
		if (found)
			free_allocation(found);
		mutex_unlock(&gpu_lock);
	} while (found);
	return 0;
}

static const struct file_operations gpu_operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = gpu_ioctl,
	.mmap = gpu_mmap,
	.release = gpu_release,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "lab-gpu",
	.mode = 0666,
	.fops = &gpu_operations,
};

/* Memory reclaim may come into a GPU's driver, by an MMU notifier or a shrinker, and wait for its
 * lock. Lockdep is told so: it then finds allocations in callbacks, and under locks that callbacks
 * take. */
static void __init tell_lockdep(void)
{
	fs_reclaim_acquire(GFP_KERNEL);
	might_lock(&gpu_lock);
	fs_reclaim_release(GFP_KERNEL);
}

static int __init lab_gpu_init(void)
{
	int error;

	tell_lockdep();
	gpu = pci_get_device(0x1af4, 0x1110, NULL);
	if (!gpu) {
		pr_err("no ivshmem device: tests/lab/run --bar SIZE\n");
		return -ENODEV;
	}
	error = pci_enable_device(gpu);
	if (error)
		goto err_put;
	bar = pci_resource_start(gpu, 2);
	bar_pages = pci_resource_len(gpu, 2) / LAB_GPU_PAGE;
	error = -ENOMEM;
	bar_used = bitmap_zalloc(bar_pages, GFP_KERNEL);
	if (!bar_used)
		goto err_disable;
	error = map_bar();
	if (error)
		goto err_free;
	error = misc_register(&device);
	if (error)
		goto err_unmap;
	return 0;

err_unmap:
	unmap_bar();
err_free:
	bitmap_free(bar_used);
err_disable:
	pci_disable_device(gpu);
err_put:
	pci_dev_put(gpu);
	return error;
}

static void __exit lab_gpu_exit(void)
{
	misc_deregister(&device);
	/* Who has pages has this module in use; with nobody there none are left. */
	WARN_ON(!list_empty(&grants));
	unmap_bar();
	bitmap_free(bar_used);
	pci_disable_device(gpu);
	pci_dev_put(gpu);
}

module_init(lab_gpu_init);
module_exit(lab_gpu_exit);

MODULE_LICENSE(LICENSE);
MODULE_DESCRIPTION("a PCI BAR as GPU memory, for tests");
