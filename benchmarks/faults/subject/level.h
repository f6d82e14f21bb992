double level(void); /* of this commit: its rate without noise */
int number(void);   /* of this commit */
