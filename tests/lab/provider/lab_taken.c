// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Has what wherry_gdr wants to make: another driver's directory in /proc, or its device's name. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/proc_fs.h>

static int proc = 1;
module_param(proc, int, 0444);
MODULE_PARM_DESC(proc,
		 "1: /proc/driver/gdrdrv; 0: a misc device of that name, with a node of another");

static const struct file_operations operations = { .owner = THIS_MODULE };

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "gdrdrv",
	.nodename = "lab-taken",
	.fops = &operations,
};

static struct proc_dir_entry *directory;

static int __init lab_taken_init(void)
{
	if (!proc)
		return misc_register(&device);
	directory = proc_mkdir("driver/gdrdrv", NULL);
	return directory ? 0 : -ENOMEM;
}

static void __exit lab_taken_exit(void)
{
	if (proc)
		proc_remove(directory);
	else
		misc_deregister(&device);
}

module_init(lab_taken_init);
module_exit(lab_taken_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("what another driver would have, for tests");
