#error out of date
