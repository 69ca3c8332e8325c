"""Where does a pretrained model come from?"""
