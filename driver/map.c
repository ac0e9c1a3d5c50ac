// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Windows: CPU mappings of a region.
 *
 * mmap() only creates the area; page faults insert the pages, one range at a time. If mmap()
 * itself inserted them, a callback could run before the area is in the file's list, and could not
 * find the pages to remove them. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/io.h>
#include <linux/pci.h>

#include "wherry_gdr.h"

/* A page fault inserts the pages of one aligned range of so many bytes, which fit one page table.
 */
#define FAULT_RANGE (2ul << 20)

#ifndef HAVE_VM_FLAGS_SET
static void vm_flags_set(struct vm_area_struct *area, unsigned long flags)
{
	area->vm_flags |= flags;
}
#endif

/* ---- memory types ---------------------------------------------------------------------------- */

/* Behind some bridges (BlueField-3) a processor must not merge its stores. */
static bool map_device_only(void)
{
#if defined(CONFIG_ARM64) && defined(CONFIG_PCI)
	static const u16 bridges[] = { 0xa2da, 0xa2db };
	struct pci_dev *bridge;
	int i;

	for (i = 0; i < ARRAY_SIZE(bridges); i++) {
		bridge = pci_get_device(PCI_VENDOR_ID_MELLANOX, bridges[i], NULL);
		if (bridge) {
			pci_dev_put(bridge);
			return true;
		}
	}
#endif
	return false;
}

enum gdrdrv_mapping map_default(const struct region *region)
{
	if (region->cacheable)
		return GDRDRV_MAPPING_CACHING;
	return map_device_only() ? GDRDRV_MAPPING_DEVICE : GDRDRV_MAPPING_WC;
}

bool map_possible(const struct region *region, enum gdrdrv_mapping type)
{
	switch (type) {
	case GDRDRV_MAPPING_NONE:
		return true;
	case GDRDRV_MAPPING_WC:
		return !map_device_only();
	case GDRDRV_MAPPING_CACHING:
		return region->cacheable;
	case GDRDRV_MAPPING_DEVICE:
		return IS_ENABLED(CONFIG_ARM64);
	}
	return false;
}

static pgprot_t map_protection(pgprot_t protection, enum gdrdrv_mapping type)
{
	if (type == GDRDRV_MAPPING_WC)
		protection = pgprot_writecombine(protection);
	else if (type == GDRDRV_MAPPING_DEVICE)
		protection = pgprot_device(protection);
	return pgprot_decrypted(protection);
}

static u64 map_physical(const struct region *region, u64 offset)
{
	return region->physical[offset >> GPU_PAGE_SHIFT] + (offset & (GPU_PAGE_SIZE - 1));
}

/* The number of GPU pages, from the first on, that are physically contiguous. */
static u32 map_run(const struct region *region, u32 first, u32 end)
{
	u64 start = region->physical[first];
	u32 i = first + 1;

	while (i < end && region->physical[i] == start + ((u64)(i - first) << GPU_PAGE_SHIFT))
		i++;
	return i - first;
}

/* On x86 the kernel has a memory type for every physical range and uses it when it inserts a page:
 * a range without a type is uncached, whatever the page's protection. Allocates. Returns the number
 * of GPU pages, from the first on, that have their type. */
static u32 map_reserve(const struct region *region)
{
	u32 end = region->size >> GPU_PAGE_SHIFT, done = 0, run;

	while (done < end) {
		run = map_run(region, done, end);
		/* If the range has another type already, that one stays: slower, but correct. */
		if (arch_io_reserve_memtype_wc(region->physical[done], (u64)run << GPU_PAGE_SHIFT))
			break;
		done += run;
	}
	return done;
}

static void map_unreserve(const struct region *region, u32 pages)
{
	u32 i, run;

	for (i = 0; i < pages; i += run) {
		run = map_run(region, i, pages);
		arch_io_free_memtype_wc(region->physical[i], (u64)run << GPU_PAGE_SHIFT);
	}
}

/* ---- areas ----------------------------------------------------------------------------------- */

static void area_open(struct vm_area_struct *area)
{
	struct region *region = area->vm_private_data;

	kref_get(&region->references);
	mutex_lock(&region->lock);
	region->windows++;
	mutex_unlock(&region->lock);
}

static void area_close(struct vm_area_struct *area)
{
	struct region *region = area->vm_private_data;

	mutex_lock(&region->lock);
	region->windows--;
	mutex_unlock(&region->lock);
	region_put(region);
}

static int area_nothing(pte_t *entry, unsigned long address, void *data)
{
	return 0;
}

/* Allocate the page table for the range around an address. */
static int area_prepare(struct vm_area_struct *area, unsigned long address)
{
	return apply_to_page_range(area->vm_mm, address, PAGE_SIZE, area_nothing, NULL);
}

static vm_fault_t area_insert(struct vm_area_struct *area, const struct region *region,
			      unsigned long address)
{
	u64 page = area->vm_pgoff + ((address - area->vm_start) >> PAGE_SHIFT) - region->handle;

	return vmf_insert_pfn(area, address, PHYS_PFN(map_physical(region, page << PAGE_SHIFT)));
}

static vm_fault_t area_fault(struct vm_fault *fault)
{
	struct vm_area_struct *area = fault->vma;
	struct region *region = area->vm_private_data;
	unsigned long address = max(fault->address & ~(FAULT_RANGE - 1), area->vm_start);
	unsigned long end = min((fault->address & ~(FAULT_RANGE - 1)) + FAULT_RANGE, area->vm_end);
	vm_fault_t result = VM_FAULT_SIGBUS;

	if (area_prepare(area, fault->address & PAGE_MASK))
		return VM_FAULT_OOM;
	mutex_lock(&region->lock);
	if (region->mapping)
		result = area_insert(area, region, fault->address & PAGE_MASK);
	if (result == VM_FAULT_NOPAGE) {
		while (address < end && area_insert(area, region, address) == VM_FAULT_NOPAGE)
			address += PAGE_SIZE;
	}
	mutex_unlock(&region->lock);
	return result;
}

static const struct vm_operations_struct area_operations = {
	.open = area_open,
	.close = area_close,
	.fault = area_fault,
};

/* ---- windows --------------------------------------------------------------------------------- */

/* Claim the region's only window: 0, or -EINVAL. */
static int window_claim(struct region *region, u64 size)
{
	int error = -EINVAL;

	mutex_lock(&region->lock);
	if (region->mapping && !region->windows && size <= region->size) {
		region->mapped_as = region->requested ? region->requested : map_default(region);
		region->windows = 1;
		error = 0;
	}
	mutex_unlock(&region->lock);
	return error;
}

/* Set the memory's type, once for each region. Only the task that has claimed the window calls
 * this, so it runs once at a time; but the pages may be revoked meanwhile. */
static int window_reserve(struct region *region)
{
	u32 pages;
	int error = 0;

	if (region->mapped_as != GDRDRV_MAPPING_WC || READ_ONCE(region->reserved))
		return 0;
	pages = map_reserve(region);
	mutex_lock(&region->lock);
	if (region->mapping) {
		WRITE_ONCE(region->reserved, pages);
		pages = 0;
	} else {
		region->windows = 0;
		error = -EINVAL;
	}
	mutex_unlock(&region->lock);
	map_unreserve(region, pages);
	return error;
}

int map_window(struct file *file, struct vm_area_struct *area)
{
	struct client *client = file->private_data;
	struct region *region;
	int error = -EINVAL;

	if (!is_owner(client))
		return -EACCES;
	/* A private mapping would copy pages, which are no memory of this machine. */
	if ((area->vm_flags & (VM_SHARED | VM_MAYWRITE)) == VM_MAYWRITE)
		return -EINVAL;
	region = region_find(client, area->vm_pgoff);
	if (!region)
		return -EINVAL;

	/* A window begins with a GPU page. A program that pinned from the middle of a page, and
	 * took the window's first byte for the first one it pinned, would overwrite other memory.
	 */
	if (region->aligned)
		error = window_claim(region, area->vm_end - area->vm_start);
	if (!error)
		error = window_reserve(region);
	if (error) {
		region_put(region);
		return error;
	}

	/* Children do not inherit the window: the memory is this process's. VM_IO prevents
	 * madvise(MADV_DOFORK). */
	vm_flags_set(area, VM_IO | VM_PFNMAP | VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP);
	area->vm_page_prot = map_protection(area->vm_page_prot, region->mapped_as);
	area->vm_ops = &area_operations;
	area->vm_private_data = region;
	return 0;
}

void map_end(struct region *region)
{
	lockdep_assert_held(&region->lock);
	if (!region->mapping)
		return;
	unmap_mapping_range(region->mapping, (loff_t)region->handle << PAGE_SHIFT, region->size, 1);
	region->mapping = NULL;
	map_unreserve(region, region->reserved);
	WRITE_ONCE(region->reserved, 0);
}
