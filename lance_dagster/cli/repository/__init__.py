"""`lance-dagster repository ...`: commands about the tables of a repository; `repository_group` puts them together."""
